#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { enableCompileCache, findPackageJSON } from "node:module";
import { Argument, Command, Option } from "commander";
import type { DeliveryState, Resolution } from "../store/deliveryStore.ts";
import type { Missed } from "../store/webhook.ts";
import type { AuditCommandOptions } from "./auditCommand.ts";
import type { CodegenCommandOptions } from "./codegenCommand.ts";
import { describeError } from "./errors.ts";
import type { ExportCommandOptions } from "./exportCommand.ts";
import {
  readCount,
  readFilter,
  readHeader,
  readLedger,
  readLimit,
  readNumber,
  readTime,
  readTypes,
  type SettingOptions,
} from "./webhookOptions.ts";
import type { AddOptions } from "./webhooksCommand.ts";

// A third of the time that a command takes to begin is compiling what the last one compiled.
enableCompileCache();

const { version } = JSON.parse(readFileSync(findPackageJSON("..", import.meta.url) ?? "", "utf8")) as {
  version: string;
};

const program = new Command("fencepost")
  .description("Contract events on Stellar into database rows and signed webhooks, exactly once.")
  .version(version)
  .option("--verbose", "show the stack of an error");

interface ConfigOption {
  readonly config: string;
}

/** A command that works on a project. Its module is loaded when it runs: --help need not wait for the engine. */
function projectCommand(parent: Command, name: string, description: string): Command {
  return parent
    .command(name)
    .description(description)
    .option("-c, --config <file>", "the config of the project", "fencepost.config.ts");
}

program
  .command("init")
  .description("write a project that runs, for one contract")
  .argument("[contractId]", "C…; the native asset's contract unless given")
  .addOption(new Option("--network <name>", "the network").choices(["testnet", "pubnet"]).default("testnet"))
  .option("--dir <folder>", "where to write it", ".")
  .action(async (contractId: string | undefined, options: { network: "testnet" | "pubnet"; dir: string }) =>
    (await import("./initCommand.ts")).init(contractId, { ...options, version }),
  );

interface HttpOptions {
  readonly port?: number;
  readonly host?: string;
}

/** Options of a command that may serve HTTP: it does so only when told, here or in the config. */
function withHttp(command: Command): Command {
  return command
    .option("--port <number>", "serve the HTTP interface on this port; 0: a free one", readNumber)
    .option("--host <address>", "the address to serve it on; 127.0.0.1 unless given");
}

withHttp(
  projectCommand(program, "dev", "develop: own database, .env, reload on save, plain http allowed"),
).action(async (options: ConfigOption & HttpOptions) =>
  (await import("./run.ts")).dev({ ...options, verbose: isVerbose() }),
);

withHttp(projectCommand(program, "start", "run in production, from DATABASE_URL or --embedded"))
  .option("--embedded", "keep the data in .fencepost/ beside the config", false)
  .action(async (options: ConfigOption & HttpOptions & { embedded: boolean }) =>
    (await import("./run.ts")).start(options),
  );

projectCommand(program, "migrate", "bring the database to this version and this config")
  .option("--embedded", "the database in .fencepost/ beside the config", false)
  .action(async (options: ConfigOption & { embedded: boolean }) =>
    (await import("./migrateCommand.ts")).migrateProject(options),
  );

projectCommand(program, "status", "which database is in use, and how every stage stands")
  .option("--json", "as one JSON object", false)
  .action(async (options: ConfigOption & { json: boolean }) =>
    (await import("./statusCommand.ts")).status(options),
  );

projectCommand(program, "trace", "follow one event through every stage")
  .argument("<id>", "a token, an event id or a delivery id")
  .option("--json", "as one JSON object", false)
  .action(async (id: string, options: ConfigOption & { json: boolean }) =>
    (await import("./traceCommand.ts")).trace(id, options),
  );

projectCommand(program, "skip", "pass over one event in one projection, on the record")
  .argument("<projection>", "the projection that stopped")
  .argument("<token>", "the token that it stopped at")
  .requiredOption("--reason <text>", "why; it is kept")
  .action(async (projection: string, token: string, options: ConfigOption & { reason: string }) =>
    (await import("./skipCommand.ts")).skip(projection, token, options),
  );

projectCommand(program, "gaps", "list the ledgers that the source no longer had, and what became of them")
  .option("--json", "as one JSON object", false)
  .action(async (options: ConfigOption & { json: boolean }) =>
    (await import("./sourcesCommand.ts")).listGaps(options),
  );

projectCommand(
  program,
  "backfill",
  "read ledgers again, beside the running stream, and store what is missing",
)
  .requiredOption("--from <ledger>", "the first ledger", readLedger)
  .requiredOption("--to <ledger>", "the last ledger", readLedger)
  .option("--source <name>", "one of the config's sources; its source unless given")
  .option("--json", "the report as one JSON object", false)
  .action(async (options: ConfigOption & { from: number; to: number; source?: string; json: boolean }) =>
    (await import("./sourcesCommand.ts")).backfillRange(options),
  );

const several = (value: string, before: readonly string[] = []): readonly string[] => [...before, value];

projectCommand(
  program,
  "audit",
  "read ledgers again and prove that every stage has them; exit code 1 where not",
)
  .requiredOption("--from <ledger>", "the first ledger", readLedger)
  .requiredOption("--to <ledger>", "the last ledger", readLedger)
  .option("--provider <number>", "ask that one of the source's urls alone, from 1", readCount)
  .option("--source <name>", "one of the config's sources; its source unless given")
  .option("--rerun", "prove the messages too: run the handlers again, beside the live tables", false)
  .option("--json", "as one JSON object", false)
  .action(async (options: AuditCommandOptions) => (await import("./auditCommand.ts")).auditRange(options));

projectCommand(program, "export", "write stored events to a file that replay() reads")
  .requiredOption("--out <file>", "the file; none is overwritten")
  .option("--from <ledger>", "the first ledger; that of the first event unless given", readLedger)
  .option("--to <ledger>", "the last ledger; the last one read unless given", readLedger)
  .option("--contract <id>", "only this one; may be given again", several)
  .action(async (options: ExportCommandOptions) => (await import("./exportCommand.ts")).exportFile(options));

const epoch = program.command("epoch").description("what to do when a network was reset");

projectCommand(epoch, "begin", "go on with the new chain, whose epoch the config names")
  .option("--from <ledger>", "the first ledger to read; the oldest unless given", readLedger)
  .action(async (options: ConfigOption & { from?: number }) =>
    (await import("./sourcesCommand.ts")).beginNextEpoch(options),
  );

projectCommand(program, "codegen", "write TypeScript for the events that contracts describe")
  .option("--contract <contract>", "[name=]C…[@ledger|@latest|@oldest]; may be given again", several)
  .option("--wasm <file>", "[name=]path of a wasm file; may be given again", several)
  .option(
    "--event <name>",
    "an event in raw form, where the code describes none; may be given again",
    several,
  )
  .option("--out <file>", "where to write; standard output unless given")
  .addOption(new Option("--network <name>", "that of the config unless given").choices(["testnet", "pubnet"]))
  .option("--rpc <urls>", "Stellar RPC nodes, with commas between; STELLAR_RPC_URL unless given")
  .action(async (options: CodegenCommandOptions) => (await import("./codegenCommand.ts")).codegen(options));

const webhooks = program.command("webhooks").description("add, change, list and test webhooks");

/** What may be said about a webhook when it is added, and changed later. */
function withSettings(command: Command): Command {
  return command
    .option("--filter <json>", "only messages whose data contain this; none: all of them", readFilter)
    .option("--header <text>", "'name: value', sent with each attempt; may be given again", readHeader)
    .option("--description <text>", "for people")
    .addOption(
      new Option("--on-unknown <policy>", "when bytes left and no answer came").choices([
        "resend",
        "hold",
        "ask",
      ]),
    )
    .addOption(new Option("--retry-on <answers>", "which answers are sent again").choices(["default", "all"]))
    .option("--rate <number>", "attempts a second, at the most; none: no limit", readLimit)
    .option("--max-in-flight <number>", "deliveries under way, at the most; none: no limit", readLimit)
    .option("--allow-insecure", "take http with DATABASE_URL too; development only", false);
}

withSettings(projectCommand(webhooks, "add", "add a webhook, and print its secret once"))
  .argument("<url>", "where to send; https, or http with the embedded database")
  .requiredOption("--types <list>", 'message types with commas between, or "*" for all', readTypes)
  .addOption(new Option("--ordering <order>", "set once").choices(["none", "strict"]).default("none"))
  .action(async (url: string, options: AddOptions) =>
    (await import("./webhooksCommand.ts")).addWebhook(url, options),
  );

withSettings(projectCommand(webhooks, "update", "change what is named, for retries of older deliveries too"))
  .argument("<id>", "wh_…")
  .option("--url <url>", "where to send")
  .option("--types <list>", 'message types with commas between, or "*" for all', readTypes)
  .action(async (id: string, options: ConfigOption & SettingOptions & { allowInsecure: boolean }) =>
    (await import("./webhooksCommand.ts")).updateWebhook(id, options),
  );

projectCommand(webhooks, "list", "list the webhooks, without their secrets")
  .option("--json", "as one JSON object", false)
  .action(async (options: ConfigOption & { json: boolean }) =>
    (await import("./webhooksCommand.ts")).listWebhooks(options),
  );

projectCommand(webhooks, "test", "queue a test message for one webhook")
  .argument("<id>", "wh_…")
  .option("--wait", "wait for the first outcome; exit with 1 unless it is a success", false)
  .action(async (id: string, options: ConfigOption & { wait: boolean }) =>
    (await import("./webhooksCommand.ts")).testWebhook(id, options),
  );

projectCommand(webhooks, "pause", "send nothing to a webhook until it is activated")
  .argument("<id>", "wh_…")
  .option("--reason <text>", "why; it is shown")
  .action(async (id: string, options: ConfigOption & { reason?: string }) =>
    (await import("./webhooksCommand.ts")).pauseWebhook(id, options),
  );

projectCommand(webhooks, "activate", "send to a webhook again")
  .argument("<id>", "wh_…")
  .addOption(
    new Option("--missed <what>", "what becomes of the messages it missed")
      .choices(["skip", "deliver"])
      .default("skip"),
  )
  .action(async (id: string, options: ConfigOption & { missed: Missed }) =>
    (await import("./webhooksCommand.ts")).activateWebhook(id, options),
  );

projectCommand(webhooks, "delete", "delete a webhook; what is pending fails")
  .argument("<id>", "wh_…")
  .action(async (id: string, options: ConfigOption) =>
    (await import("./webhooksCommand.ts")).deleteWebhook(id, options),
  );

projectCommand(webhooks, "rotate-secret", "sign with a new secret, and print it once")
  .argument("<id>", "wh_…")
  .option("--overlap-hours <number>", "how long the ones before it still sign", readNumber, 24)
  .action(async (id: string, options: ConfigOption & { overlapHours: number }) =>
    (await import("./webhooksCommand.ts")).rotateSecret(id, options),
  );

projectCommand(webhooks, "replay", "make the deliveries of a time that are missing")
  .argument("<id>", "wh_…")
  .requiredOption("--from <time>", "messages from then on, as 2026-06-19T00:00:00Z", readTime)
  .requiredOption("--to <time>", "messages until then", readTime)
  .action(async (id: string, options: ConfigOption & { from: Date; to: Date }) =>
    (await import("./webhooksCommand.ts")).replayWebhook(id, options),
  );

const deliveries = program.command("deliveries").description("list deliveries, and decide about them");

projectCommand(deliveries, "list", "list the deliveries of a webhook, the newest first")
  .argument("<webhook>", "wh_…")
  .addOption(
    new Option("--state <state>", "only those").choices([
      "pending",
      "sending",
      "success",
      "failed",
      "in_doubt",
    ]),
  )
  .option("--needs-person", "only those that wait for a person, or block a strict webhook", false)
  .option("--limit <number>", "how many, at the most", readCount, 50)
  .option("--json", "as one JSON object", false)
  .action(
    async (
      webhook: string,
      options: ConfigOption & { state?: DeliveryState; needsPerson: boolean; limit: number; json: boolean },
    ) => (await import("./deliveriesCommand.ts")).listDeliveries(webhook, options),
  );

projectCommand(deliveries, "redeliver", "send again what ended, with the same ids and bytes")
  .argument("<id>", "dlv_…")
  .action(async (id: string, options: ConfigOption) =>
    (await import("./deliveriesCommand.ts")).redeliver(id, options),
  );

projectCommand(deliveries, "resolve", "settle what is in doubt or failed")
  .argument("<id>", "dlv_…")
  .addArgument(
    new Argument("<resolution>", "it arrived, is to be sent again, or is given up").choices([
      "delivered",
      "resend",
      "skip",
    ]),
  )
  .action(async (id: string, resolution: Resolution, options: ConfigOption) =>
    (await import("./deliveriesCommand.ts")).resolve(id, resolution, options),
  );

const keys = program.command("keys").description("keys of the HTTP interface");

projectCommand(keys, "create", "make a key, and print it once")
  .argument("<name>", "who uses it, for people")
  .action(async (name: string, options: ConfigOption) =>
    (await import("./keysCommand.ts")).createKey(name, options),
  );

projectCommand(keys, "list", "list the keys, without what opens anything")
  .option("--json", "as one JSON object", false)
  .action(async (options: ConfigOption & { json: boolean }) =>
    (await import("./keysCommand.ts")).listKeys(options),
  );

projectCommand(keys, "revoke", "end a key at once")
  .argument("<id>", "key_…")
  .action(async (id: string, options: ConfigOption) =>
    (await import("./keysCommand.ts")).revokeKey(id, options),
  );

function isVerbose(): boolean {
  return program.opts<{ verbose?: boolean }>().verbose === true;
}

try {
  await program.parseAsync();
} catch (error) {
  process.stderr.write(`${describeError(error, isVerbose())}\n`);
  process.exitCode = 1;
}
