import { sqliteInbox } from "../../sqliteInbox.ts";
import { handleForEver } from "./handleForEver.ts";

await handleForEver(sqliteInbox({ path: process.argv[2] ?? "" }), (tx) => {
  tx.exec("CREATE TABLE IF NOT EXISTS effects (event_id TEXT); INSERT INTO effects VALUES ('evt_1')");
});
