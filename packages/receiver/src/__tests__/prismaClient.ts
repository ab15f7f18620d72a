import { PrismaPg } from "@prisma/adapter-pg";
import { type GetPrismaClientConfig, getPrismaClient } from "@prisma/client/runtime/client";

/** What of Prisma is needed where there are no models. */
interface RawPrisma {
  $queryRawUnsafe<T>(statement: string, ...values: unknown[]): Promise<T>;
  $executeRawUnsafe(statement: string, ...values: unknown[]): Promise<number>;
}

export interface PrismaClient extends RawPrisma {
  $transaction<T>(work: (tx: RawPrisma) => Promise<T>): Promise<T>;
  $disconnect(): Promise<void>;
}

/** Not declared to TypeScript. */
const COMPILER = "@prisma/client/runtime/query_compiler_fast_bg.postgresql";

/**
 * What `prisma generate` writes for a schema without models. The command fetches a binary that no package holds; the
 * client and its adapter do not.
 */
const CONFIG: GetPrismaClientConfig = {
  previewFeatures: [],
  clientVersion: "7.10.0",
  engineVersion: "d1b3f377ca835d73fd50954a5e22128b9ebdd6b8",
  activeProvider: "postgresql",
  inlineSchema:
    'generator client {\n  provider = "prisma-client"\n}\n\ndatasource db {\n  provider = "postgresql"\n}\n',
  runtimeDataModel: { models: {}, enums: {}, types: {} },
  parameterizationSchema: { strings: [], graph: "AAAA" },
  compilerWasm: {
    getRuntime: () => import(`${COMPILER}.mjs`),
    async getQueryCompilerWasmModule() {
      const { wasm } = (await import(`${COMPILER}.wasm-base64.mjs`)) as { wasm: string };
      const { Module } = Reflect.get(globalThis, "WebAssembly") as { Module: new (bytes: Buffer) => unknown };
      return new Module(Buffer.from(wasm, "base64"));
    },
    importName: "./query_compiler_fast_bg.js",
  },
};

/** Prisma itself, over a database. */
export function prismaClient(url: string): PrismaClient {
  const Client = getPrismaClient(CONFIG) as unknown as new (options: object) => PrismaClient;
  return new Client({ adapter: new PrismaPg({ connectionString: url, max: 2 }) });
}
