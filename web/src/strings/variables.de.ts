import type { Variable, WordedDefault } from "../generated/variables";

const words: Record<Variable, string> = {
  KEEPWARM_HOST: "Adresse, auf der der Server hört.",
  KEEPWARM_PORT: "Port, auf dem der Server hört.",
  KEEPWARM_PUBLIC_URL:
    "Adresse, die Leute eintippen, wenn sie eine andere ist (Proxy, Heimnetz). Von ihr hängt ab, welche Host- und Origin-Angaben gelten; über https sind Cookies nur für sichere Verbindungen.",
  KEEPWARM_TRUSTED_PROXIES:
    "Proxys, durch Kommas getrennt, deren X-Forwarded-For geglaubt wird, damit Anmeldeversuche dem Besucher zählen.",
  KEEPWARM_DATA_DIR: "Ordner für die Datenbank und das umgewandelte Modell.",
  KEEPWARM_DATABASE_URL: "SQLite-Datei oder PostgreSQL-Datenbank.",
  KEEPWARM_MODEL:
    "Ordner mit safetensors, GGUF-Datei oder Name im Hub; default ist das mitgelieferte SmolLM2.",
  KEEPWARM_KV_MEMORY:
    "Speicher, um Unterhaltungen warm zu halten (Bytes, oder mit KiB, MiB oder GiB).",
  KEEPWARM_PARK_MEMORY:
    "Speicher für KV, das den Vorrat verlassen musste; lohnt sich, wo der Vorrat auf einer GPU liegt (Bytes, oder mit KiB, MiB oder GiB).",
  KEEPWARM_PARK_DISK:
    "Platz im Datenordner für KV, das den Vorrat verlassen musste, und beim Anhalten des Servers für alles: So bleiben Unterhaltungen über einen Neustart warm (Bytes, oder mit KiB, MiB oder GiB).",
  KEEPWARM_DETERMINISTIC:
    "1: Dieselbe Unterhaltung ergibt Bit für Bit dieselben Token, mit Cache oder ohne, was auch daneben läuft. Langsamer: 1,2-mal bei vier Unterhaltungen zugleich, 3-mal, wo torch rechnet.",
  KEEPWARM_PINNED_SHARE:
    "Wie viel dieses Speichers für Unterhaltungen gehalten werden darf, die offen oder warm zu halten sind, und für Personas und Dokumente in Gebrauch; der Rest ist frei für alles, was kommt (Anteil).",
  KEEPWARM_PINNED_SHARE_PER_USER:
    "Wie viel dieses Speichers so für eine einzige Person gehalten werden darf (Anteil).",
  KEEPWARM_DTYPE: "Zahlenformat der Gewichte und des Caches.",
  KEEPWARM_KV_DTYPE:
    "Was der Cache hält: auto, KV, wie es berechnet wird, oder fp8, auf 8 Bits gerundet, sodass doppelt so viel Platz hat; das liest nur torch (docs/cache.md).",
  KEEPWARM_KERNELS:
    "Was rechnet: auf einer CPU native, Kernel, die beim Start mit dem C++-Compiler der Maschine gebaut werden; auf einer GPU flash, Attention durch ein installiertes flash-attn-Paket; torch; oder auto, was von den anderen geht, sonst torch.",
  KEEPWARM_TENSOR_PARALLEL:
    "GPUs dieser Maschine, die sich das Modell teilen, jede mit einem Teil der Köpfe jeder Schicht und des KV jeder Unterhaltung; KEEPWARM_KV_MEMORY ist dann, was jede gibt.",
  KEEPWARM_WEIGHTS:
    "Womit Schritte mit wenigen Token rechnen: file, die Gruppen von 4 und 8 Bit genau wie in der GGUF-Datei; dtype, Gewichte, die darauf gerundet sind; oder auto, die der Datei, wo native Kernel rechnen und nicht float32 verlangt ist. Längere Schritte runden: diese Gewichte auf bfloat16 oder, auf einem Prozessor ohne AVX-512, was mit ihnen multipliziert wird, auf 8 Bit.",
  KEEPWARM_PREFIX_INDEX:
    "Wie bekannte Anfänge gefunden werden: radix, ein Baum aus Läufen, oder hashed, eine Tabelle von Blöcken. Beide finden dasselbe.",
  KEEPWARM_RETENTION:
    "Was zuerst geht: was am wenigsten wert ist (cost) oder am längsten nicht gebraucht wurde (lru).",
  KEEPWARM_TITLES:
    "1: Nach der ersten Antwort wird das Modell nach einem Titel gefragt, im Hintergrund und solange nichts anderes rechnen will; 0: Der Titel sind die ersten Wörter.",
  KEEPWARM_THREADS: "Threads, mit denen die Engine rechnet.",
  KEEPWARM_ENGINE:
    "Wo die Engine läuft: process, in einem eigenen Prozess, oder local, in dem des Servers.",
  KEEPWARM_ADMIN_EMAIL:
    "Macht beim Start den ersten Administrator, wo es keinen gibt, anstelle des ausgegebenen Links.",
  KEEPWARM_ADMIN_PASSWORD: "Passwort dieses Administrators.",
  KEEPWARM_API_KEY:
    "Ein API-Schlüssel, der eingelassen wird, für Skripte, die selbst einen Server starten.",
  KEEPWARM_REQUESTS_PER_DAY:
    "Um wie viele Züge jemand an einem Tag (UTC) bitten darf. Dies und das Folgende gilt, wo für die Person oder ihre Gruppen nichts anderes gesagt ist (docs/quotas.md).",
  KEEPWARM_TOKENS_PER_DAY:
    "Wie viele Token an einem Tag (UTC) für eine Person gerechnet und geschrieben werden dürfen.",
  KEEPWARM_GENERATIONS_PER_USER:
    "Wie viele Antworten zugleich für eine Person geschrieben werden dürfen.",
  KEEPWARM_SOCKETS_PER_USER: "Wie viele Verbindungen eine Person offen haben darf.",
  KEEPWARM_STORED_PER_USER:
    "Wie viel Text eine Person speichern darf (Bytes, oder mit KiB, MiB oder GiB).",
  KEEPWARM_KEPT_WARM_PER_USER:
    "Wie viel KV eine Person warm halten lassen darf (Bytes, oder mit KiB, MiB oder GiB).",
  KEEPWARM_SOCKETS_PER_ADDRESS:
    "Wie viele Verbindungen von einer Adresse offen sein dürfen; hinter einem Proxy, dem nicht getraut wird, haben alle Besucher eine.",
  KEEPWARM_TRACES_URL:
    "OpenTelemetry-Collector, dem über HTTP Spuren geschickt werden: Zeiten, Zahlen und Kennungen, nie Text. Braucht pip install 'keepwarm[otel]'.",
  KEEPWARM_OIDC_ISSUER:
    "OpenID-Anbieter, über den man sich anmelden kann, genau so, wie er sich selbst nennt.",
  KEEPWARM_OIDC_CLIENT_ID: "Wie der Anbieter Keepwarm nennt.",
  KEEPWARM_OIDC_CLIENT_SECRET: "Geheimnis, das der Anbieter dazu gab.",
  KEEPWARM_OIDC_NAME: "Wie der Anbieter auf dem Knopf heißt: Anmelden mit ...",
  KEEPWARM_OIDC_DOMAINS:
    "E-Mail-Domains, durch Kommas getrennt, deren Leute ein Konto bekommen, wenn sie zum ersten Mal über den Anbieter kommen; * für alle, die er einlässt. Ohne das bekommt eines nur, wer eingeladen ist.",
  KEEPWARM_OIDC_ROLE_CLAIM:
    "Angabe (Claim), in der der Anbieter sagt, was jemand ist, etwa groups: ein Wort oder eine Liste.",
  KEEPWARM_OIDC_ROLES:
    "Welche Rolle aus einem Wort dieser Angabe folgt, durch Kommas getrennt; das erste, das jemand hat, zählt bei jeder Anmeldung über den Anbieter, und wer keines hat, ist Mitglied.",
};

const defaults: Record<WordedDefault, string> = {
  "a quarter of what is free, at most 2GiB; on a GPU what the model leaves":
    "ein Viertel des freien, höchstens 2GiB; auf einer GPU, was das Modell übrig lässt",
  "four times the KV memory, at least 4GiB, at most a tenth of what is free":
    "viermal der Speicher für KV, mindestens 4GiB, höchstens ein Zehntel des freien",
  "http://HOST:PORT": "http://HOST:PORT",
  "no limit": "keine Grenze",
  none: "keine",
  "sqlite:///DATA_DIR/keepwarm.db": "sqlite:///DATA_DIR/keepwarm.db",
  "torch's choice": "was torch wählt",
};

export default { words, defaults };
