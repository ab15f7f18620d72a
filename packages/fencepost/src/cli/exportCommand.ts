import { open, rm } from "node:fs/promises";
import { finished } from "node:stream/promises";
import { exportEvents } from "../export/exportEvents.ts";
import { namingPath } from "./errors.ts";
import { loadConfig, requireSource } from "./loadConfig.ts";
import { print } from "./print.ts";
import { withProjectDatabase } from "./project.ts";
import { listenForStop } from "./stopSignal.ts";

/** As commander hands them over; what was not given is not there. */
export interface ExportCommandOptions {
  readonly config: string;
  readonly from?: number;
  readonly to?: number;
  readonly contract?: readonly string[];
  readonly out: string;
}

/** `fencepost export`: stored events as a file for `replay()`. No file is overwritten, and none is left half-written. */
export async function exportFile(options: ExportCommandOptions): Promise<void> {
  const signal = listenForStop();
  const { from, to, contract, out } = options;
  await withProjectDatabase(options.config, async ({ database }, project) => {
    const { config } = await loadConfig(project.configPath);
    const { stream } = requireSource(config).chain;
    const wanted = {
      stream,
      signal,
      ...(from !== undefined && { fromLedger: from }),
      ...(to !== undefined && { throughLedger: to }),
      ...(contract && { contracts: contract }),
    };
    const file = (await namingPath(out, () => open(out, "wx"))).createWriteStream();
    try {
      const report = await namingPath(out, async () => {
        const written = await exportEvents(database, wanted, file);
        file.end();
        await finished(file);
        return written;
      });
      const { fromLedger, throughLedger, events } = report;
      print(`${out}: ${events} events of ledgers ${fromLedger} to ${throughLedger}.`);
    } catch (error) {
      file.destroy();
      await rm(out, { force: true });
      throw error;
    }
  });
}
