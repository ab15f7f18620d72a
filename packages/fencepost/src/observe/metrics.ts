import { Counter, Gauge, Registry } from "prom-client";

/** What the stages count, under Prometheus names. */
export interface Metrics {
  readonly registry: Registry;
  stored(stream: string, stored: { events: number; replayed: number; ledger: number }): void;
  /** A hole was found, or has grown. */
  gapFound(stream: string, gap: { fromLedger: number; throughLedger: number; accepted: boolean }): void;
  /** One of several nodes is set aside, or asked again. */
  nodeChanged(
    stream: string,
    event: { node: string } & ({ kind: "aside"; reason: string } | { kind: "back" }),
  ): void;
  /** A provider was asked about the last ledgers: what it and the stored events differ in. */
  opinionGiven(opinion: Opinion): void;
  projected(projection: string, done: { events: number; messages: number; misfits: number }): void;
  dispatched(report: { messages: number; deliveries: number }): void;
  attemptEnded(outcome: string): void;
  /** How deliveries stand, read just before the metrics are. */
  deliveriesStand(health: DeliveryHealth): void;
}

interface Opinion {
  readonly provider: string;
  readonly notStored: readonly unknown[];
  readonly notServed: readonly unknown[];
  readonly different: readonly unknown[];
}

interface DeliveryHealth {
  readonly dueLagSeconds: number;
  readonly inDoubt: number;
  readonly disabledWebhooks: number;
  readonly outbox: number;
}

export function createMetrics(): Metrics {
  const registry = new Registry();
  const registers = [registry];
  const counter = (name: string, help: string, labelNames: string[]) =>
    new Counter({ name: `fencepost_${name}`, help, labelNames, registers });
  const events = counter("events_stored_total", "Events stored.", ["stream"]);
  const replays = counter("events_replayed_total", "Events that were stored already.", ["stream"]);
  const gaps = counter("gaps_found_total", "Holes found in the source, and growths of them.", [
    "stream",
    "accepted",
  ]);
  const setAside = counter("nodes_set_aside_total", "How often a node was set aside, and why.", [
    "stream",
    "node",
    "reason",
  ]);
  const projected = counter("events_projected_total", "Events applied by a projection.", ["projection"]);
  const messages = counter("messages_total", "Messages made by a projection.", ["projection"]);
  const misfits = counter("events_set_aside_total", "Events that do not fit their declared shape.", [
    "projection",
  ]);
  const deliveries = counter("deliveries_created_total", "Deliveries made from messages.", []);
  const attempts = counter(
    "attempts_total",
    "Attempts by outcome; stale ones came after their claim was lost.",
    ["outcome"],
  );
  const gauge = (name: string, help: string, labelNames: string[] = []) =>
    new Gauge({ name: `fencepost_${name}`, help, labelNames, registers });
  const ledger = gauge("stream_ledger", "The ledger read last.", ["stream"]);
  const aside = gauge("node_aside", "1 while a node is not asked, 0 when it is again.", ["stream", "node"]);
  const differing = gauge(
    "second_opinion_differing_events",
    "Events of the last ledgers in which a provider, when it was asked last, and what is stored differ.",
    ["provider"],
  );
  const dueLag = gauge(
    "deliveries_due_lag_seconds",
    "How long the oldest delivery has been due that no order holds back.",
  );
  const inDoubt = gauge("deliveries_in_doubt", "Deliveries that wait for a person.");
  const disabled = gauge("webhooks_disabled", "Webhooks that are not active.");
  const outbox = gauge("outbox_messages", "Messages that wait for their deliveries.");
  return {
    registry,
    stored(stream, stored) {
      events.inc({ stream }, stored.events);
      replays.inc({ stream }, stored.replayed);
      ledger.set({ stream }, stored.ledger);
    },
    gapFound: (stream, { accepted }) => gaps.inc({ stream, accepted: String(accepted) }),
    nodeChanged(stream, event) {
      const { node } = event;
      aside.set({ stream, node }, event.kind === "aside" ? 1 : 0);
      if (event.kind === "aside") setAside.inc({ stream, node, reason: event.reason });
    },
    opinionGiven({ provider, notStored, notServed, different }) {
      differing.set({ provider }, notStored.length + notServed.length + different.length);
    },
    projected(projection, done) {
      projected.inc({ projection }, done.events);
      messages.inc({ projection }, done.messages);
      misfits.inc({ projection }, done.misfits);
    },
    dispatched: (report) => deliveries.inc(report.deliveries),
    attemptEnded: (outcome) => attempts.inc({ outcome }),
    deliveriesStand(health) {
      dueLag.set(health.dueLagSeconds);
      inDoubt.set(health.inDoubt);
      disabled.set(health.disabledWebhooks);
      outbox.set(health.outbox);
    },
  };
}
