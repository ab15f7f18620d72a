#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { findPackageJSON } from "node:module";
import { Command, Option } from "commander";
import type { OnUnknown } from "../store/deliveryStore.ts";
import { describeError } from "./errors.ts";

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

projectCommand(program, "dev", "develop: own database, .env, reload on save, plain http allowed").action(
  async ({ config }: ConfigOption) => (await import("./run.ts")).dev({ config, verbose: isVerbose() }),
);

projectCommand(program, "start", "run in production, from DATABASE_URL or --embedded")
  .option("--embedded", "keep the data in .fencepost/ beside the config", false)
  .action(async (options: ConfigOption & { embedded: boolean }) => (await import("./run.ts")).start(options));

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

const webhooks = program.command("webhooks").description("add, list and test webhooks");

interface AddOptions extends ConfigOption {
  readonly types: readonly string[];
  readonly onUnknown: OnUnknown;
  readonly description: string;
  readonly allowInsecure: boolean;
}

projectCommand(webhooks, "add", "add a webhook, and print its secret once")
  .argument("<url>", "where to send; https, or http with the embedded database")
  .requiredOption("--types <list>", 'message types with commas between, or "*" for all', (text: string) =>
    text.split(",").map((type) => type.trim()),
  )
  .addOption(
    new Option("--on-unknown <policy>", "when bytes left and no answer came")
      .choices(["resend", "hold"])
      .default("resend"),
  )
  .option("--description <text>", "for people", "")
  .option("--allow-insecure", "take http with DATABASE_URL too; development only", false)
  .action(async (url: string, options: AddOptions) =>
    (await import("./webhooksCommand.ts")).addWebhook(url, options),
  );

projectCommand(webhooks, "list", "list the webhooks, without their secrets").action(
  async (options: ConfigOption) => (await import("./webhooksCommand.ts")).listWebhooks(options),
);

projectCommand(webhooks, "test", "queue a test message for one webhook")
  .argument("<id>", "wh_…")
  .option("--wait", "wait for the first outcome; exit with 1 unless it is a success", false)
  .action(async (id: string, options: ConfigOption & { wait: boolean }) =>
    (await import("./webhooksCommand.ts")).testWebhook(id, options),
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
