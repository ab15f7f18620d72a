import { type CodegenOptions, runCodegen } from "../codegen/codegen.ts";
import type { NetworkOption } from "../source/networks.ts";
import { namingPath } from "./errors.ts";
import { loadConfig, requireSource } from "./loadConfig.ts";
import { print } from "./print.ts";
import { loadEnv, projectAt } from "./project.ts";
import { listenForStop } from "./stopSignal.ts";

/** As commander hands them over; what was not given is not there. */
export interface CodegenCommandOptions {
  readonly config: string;
  readonly contract?: readonly string[];
  readonly wasm?: readonly string[];
  readonly event?: readonly string[];
  readonly out?: string;
  readonly network?: "testnet" | "pubnet";
  readonly rpc?: string;
}

/** `fencepost codegen`: writes the types of contracts' events to a file, or to standard output. */
export async function codegen(options: CodegenCommandOptions): Promise<void> {
  const signal = listenForStop();
  const project = projectAt(options.config);
  const { contract = [], wasm = [], event = [], out } = options;
  loadEnv(project);
  const request: CodegenOptions = {
    contracts: contract,
    wasmFiles: wasm,
    rawEvents: event,
    signal,
    ...(out !== undefined && { out }),
    // Wasm files need no network, and the config may import the very file that is to be written.
    ...(contract.length > 0 && {
      network: options.network ?? (await networkOf(project.configPath)),
      urls: options.rpc ?? process.env["STELLAR_RPC_URL"],
    }),
  };
  const { source, written, leftOut } = await namingPath(out ?? "", () => runCodegen(request));
  if (out === undefined) process.stdout.write(source);
  else print(written ? `${out} is written.` : `${out} is as it should be.`);
  for (const { contract: name, event: left, why } of leftOut) {
    process.stderr.write(`left out of ${name}: ${left} ${why}.\n`);
  }
}

async function networkOf(configPath: string): Promise<NetworkOption> {
  const { chain, passphrase } = requireSource((await loadConfig(configPath)).config);
  return { name: chain.stream, epoch: chain.epoch, passphrase };
}
