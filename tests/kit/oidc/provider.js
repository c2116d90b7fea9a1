// A certified OpenID provider for tests: whoever it knows signs in with any password.
//
// `node provider.js PORT CALLBACK_URL ACCOUNTS`, ACCOUNTS as JSON: what is claimed of each login.
// Says "ready" when it listens. Its keys and sessions are new with each start.

import { generateKeyPairSync } from "node:crypto";

import { Provider } from "oidc-provider";

const [port, callbackUrl, accounts] = process.argv.slice(2);
const known = new Map(Object.entries(JSON.parse(accounts)));
const key = generateKeyPairSync("ec", { namedCurve: "P-256" }).privateKey.export({ format: "jwk" });

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "keepwarm",
      client_secret: "a secret: with & signs",
      redirect_uris: [callbackUrl],
      id_token_signed_response_alg: "ES256",
    },
  ],
  jwks: { keys: [{ ...key, alg: "ES256", use: "sig", kid: `key of ${process.pid}` }] },
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "groups"] },
  pkce: { required: () => true },
  cookies: { keys: ["of a test"] },
  findAccount: (_, id) =>
    known.has(id) && { accountId: id, claims: () => ({ sub: id, ...known.get(id) }) },
});

provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
