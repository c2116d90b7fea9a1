// What a program with the TypeScript SDK does; tells what it got as one line of JSON.
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.DIALECT_URL,
  apiKey: process.env.DIALECT_KEY,
  maxRetries: 0,
});

async function responses() {
  const whole = await client.responses.create({ input: "One" });
  const events = [];
  const stream = await client.responses.create({
    input: "Two",
    previous_response_id: whole.id,
    stream: true,
  });
  for await (const event of stream) events.push(event);
  const created = events[0];
  const id = created.type === "response.created" ? created.response.id : "";
  const rest = [];
  const resumed = await client.responses.retrieve(id, { stream: true, starting_after: 4 });
  for await (const event of resumed) rest.push(event);
  const missing = await client.responses
    .retrieve("resp_unknown")
    .catch((error) => [error.constructor.name, error.status, error.param]);
  const gone = await client.responses.delete(whole.id);
  return { whole, events, rest, missing, gone: gone ?? null };
}

async function completions(model: string) {
  const messages = [{ role: "user" as const, content: "Hello" }];
  const whole = await client.chat.completions.create({ model, messages });
  const chunks = [];
  const stream = await client.chat.completions.create({
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) chunks.push(chunk);
  return { whole, chunks };
}

async function conversations() {
  const made = await client.conversations.create({ metadata: { topic: "sea" } });
  const answer = await client.responses.create({ conversation: made.id, input: "One" });
  const items = [];
  const pages = client.conversations.items.list(made.id, { order: "asc", limit: 1 });
  for await (const item of pages) items.push(item);
  const deleted = await client.conversations.delete(made.id);
  return { made, answer, items, deleted };
}

async function calls(model: string) {
  const parameters = { type: "object", properties: {}, additionalProperties: false };
  const tide = { name: "tide", parameters, strict: true };
  const tools = [{ type: "function" as const, ...tide }];
  const mode = "required" as const;
  const allowed = [{ type: "function", name: "tide" }];
  const first = await client.responses.create({
    input: "One",
    tools,
    tool_choice: { type: "allowed_tools", mode, tools: allowed },
  });
  const call = first.output[0];
  if (call.type !== "function_call") throw new Error(`no call but ${call.type}`);
  const output = { type: "function_call_output" as const, call_id: call.call_id, output: "high" };
  const answer = { previous_response_id: first.id, input: [output], tools };
  const second = await client.responses.create(answer);
  const chat = await client.chat.completions
    .stream({
      model,
      messages: [{ role: "user", content: "One" }],
      tools: [{ type: "function", function: tide }],
      tool_choice: {
        type: "allowed_tools",
        allowed_tools: { mode, tools: [{ type: "function", function: { name: "tide" } }] },
      },
    })
    .finalChatCompletion();
  return { first, second, chat };
}

if (process.env.DIALECT_PART === "calls") {
  console.log(JSON.stringify(await calls("echo")));
  process.exit(0);
}
const models = (await client.models.list()).data.map((model) => model.id);
console.log(
  JSON.stringify({
    models,
    responses: await responses(),
    completions: await completions(models[0]),
    conversations: await conversations(),
  }),
);
