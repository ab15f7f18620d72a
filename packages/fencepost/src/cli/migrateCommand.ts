import { prepare } from "../engine.ts";
import { readMigrationState } from "../store/postgres/migrate.ts";
import { loadConfig } from "./loadConfig.ts";
import { print } from "./print.ts";
import { describePlace, openProjectDatabase, projectAt } from "./project.ts";
import { listenForStop } from "./stopSignal.ts";

/** `fencepost migrate`: the schema, and on purpose what `start` refuses to take over: a changed filter set. */
export async function migrateProject(options: {
  readonly config: string;
  readonly embedded: boolean;
}): Promise<void> {
  const signal = listenForStop();
  const project = projectAt(options.config);
  const { config } = await loadConfig(project.configPath);
  const opened = await openProjectDatabase(project, { kind: "named", embedded: options.embedded });
  try {
    const { pending } = await readMigrationState(opened.database);
    await prepare({ database: opened.database, config }, { adopt: true, rebuildChanged: false, signal });
    print(
      `database: ${describePlace(opened.place)}`,
      `applied: ${pending.length === 0 ? "nothing, the schema was up to date" : pending.join(", ")}`,
      ...(config.source ? [`stream: ${config.source.chain.stream}`] : []),
      `projections: ${config.projections.map(({ name, version }) => `${name} v${version}`).join(", ")}`,
    );
  } finally {
    await opened.close();
  }
}
