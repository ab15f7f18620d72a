// The rooms of the house and the doors between them (shared design, section 7).
const stages = ["ingest", "project", "dispatch", "deliver"];
const src = "^packages/fencepost/src";

/** @type {import('dependency-cruiser').IConfiguration} */
export default {
  forbidden: [
    { name: "no-cycles", severity: "error", from: {}, to: { circular: true } },
    {
      name: "a-stage-imports-no-other-stage",
      severity: "error",
      from: { path: `${src}/(${stages.join("|")})/`, pathNot: "\\.test\\.ts$" },
      to: { path: `${src}/(${stages.join("|")}|cli|api)/`, pathNot: `${src}/$1/` },
    },
    {
      name: "leaves-import-no-stage",
      severity: "error",
      from: { path: `${src}/(store|lease|observe|xdr|source|config|runner)/`, pathNot: "\\.test\\.ts$" },
      to: { path: `${src}/(${stages.join("|")}|cli|api)/` },
    },
    {
      name: "only-cli-wires-the-api-to-the-rest",
      severity: "error",
      from: { path: src, pathNot: `${src}/(cli|api)/|\\.test\\.ts$|__tests__` },
      to: { path: `${src}/api/` },
    },
    {
      name: "api-does-not-know-the-command-line",
      severity: "error",
      from: { path: `${src}/api/`, pathNot: "\\.test\\.ts$" },
      to: { path: `${src}/cli/` },
    },
    {
      name: "only-xdr-touches-the-stellar-sdk",
      severity: "error",
      from: { path: src, pathNot: `${src}/xdr/` },
      to: { path: "@stellar/stellar-sdk" },
    },
    {
      name: "http-to-customers-only-in-deliver-and-stellar-http-only-in-source",
      severity: "error",
      from: { path: src, pathNot: `${src}/(deliver|source)/|\\.test\\.ts$|__tests__` },
      to: { path: "^(node_modules/)?undici" },
    },
    {
      name: "pg-only-in-store",
      severity: "error",
      from: { path: src, pathNot: `${src}/store/|\\.(test|test-d|conformance)\\.ts$|__tests__` },
      to: { path: "node_modules/pg/" },
    },
    {
      name: "token-depends-on-nothing",
      severity: "error",
      from: { path: "^packages/token/src", pathNot: "\\.test\\.ts$" },
      to: { pathNot: "^packages/token/src" },
    },
    {
      name: "receiver-depends-on-the-token-only",
      severity: "error",
      from: { path: "^packages/receiver/src", pathNot: "\\.test\\.ts$|__tests__" },
      to: { path: "^(packages/(fencepost|simulator)|node_modules)" },
    },
    {
      name: "production-imports-no-test-support",
      severity: "error",
      from: {
        path: "^packages/[^/]+/src",
        pathNot: "\\.test\\.ts$|\\.conformance\\.ts$|__tests__|^packages/simulator",
      },
      to: { path: "\\.test\\.ts$|__tests__|^packages/simulator" },
    },
  ],
  options: {
    doNotFollow: { path: "node_modules" },
    exclude: { path: "/dist/" },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: "tsconfig.json" },
    enhancedResolveOptions: { exportsFields: ["exports"], conditionNames: ["import", "types"] },
  },
};
