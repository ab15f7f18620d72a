// The dispatcher as a library: what is asked for, and the loops that send.
import type { AddressRuleOptions } from "./address/addressRules.ts";
import { createDeliverer, type DeliverOptions } from "./deliver/deliverLoop.ts";
import { createDispatcher as createRequests, type Dispatcher as Requests } from "./dispatch/dispatcher.ts";
import { startDispatchLoop } from "./dispatch/dispatchLoop.ts";
import { createLog, type Log } from "./observe/log.ts";
import type { Loop } from "./runner/runner.ts";
import type {
  Delivery,
  DeliveryState,
  DeliveryStore,
  FanOutReport,
  Resolution,
} from "./store/deliveryStore.ts";
import { startUpkeepLoop } from "./upkeepLoop.ts";

export interface Dispatcher<Tx> extends Requests<Tx> {
  /**
   * Sends one delivery now, in this process, due or not and whether or not {@link start} was called. Resolves to the
   * delivery as it is then: after its attempt, or unchanged where it has ended, somebody else holds it, or its webhook
   * is not active, at its limit, or blocked by its order. Throws `UnknownDeliveryError`.
   */
  attempt(deliveryId: string): Promise<Delivery>;
  /** From now on this process sends what is due. Calling it again changes nothing; a stopped one stays stopped. */
  start(): void;
  /** There may be work: it is looked for at once. What is asked of this dispatcher does that by itself. */
  wake(): void;
  /** Gives back what was not attempted, and waits for what was: up to the time-out of an attempt. */
  stop(): Promise<void>;
}

/** How attempts are made. */
export type DispatcherDeliverOptions = Pick<
  DeliverOptions,
  "timeoutMs" | "leaseMs" | "maxInFlight" | "connectionsPerOrigin" | "pollMs" | "onOutcome"
>;

export interface DispatcherOptions<Tx> extends AddressRuleOptions {
  /** `postgresStore(openDatabase(url))`, or a store on Redis. */
  readonly store: DeliveryStore<Tx>;
  /** Warnings on standard output unless given. */
  readonly log?: Log;
  /** The time of messages that callers hand in; that of this machine unless given. */
  readonly now?: () => Date;
  readonly deliver?: DispatcherDeliverOptions;
  /** How long ended deliveries, and the bodies of messages, are kept, in milliseconds; 30 days unless given. */
  readonly retentionMs?: number;
  readonly onDispatched?: (report: FanOutReport) => void;
}

const RETENTION_MS = 30 * 86_400_000;

/**
 * Webhooks for any Node backend, on a store of its own.
 *
 * ```ts
 * const database = openDatabase(process.env.DATABASE_URL);
 * await migrate(database);
 * const dispatcher = createDispatcher({ store: postgresStore(database) });
 * await dispatcher.addWebhook({ url: "https://example.com/hooks", types: ["order.paid"] });
 * dispatcher.start(); // this process sends; any number may
 *
 * await dispatcher.dispatch({ event_type: "order.paid", event_id: "order_4711", data: { amount: "12.50" } });
 * await dispatcher.stop();
 * ```
 *
 * Throws `LeaseTooShortError` or `InvalidNetworkError` for options that go wrong.
 */
export function createDispatcher<Tx>(options: DispatcherOptions<Tx>): Dispatcher<Tx> {
  const { store, log = createLog("warn"), now = () => new Date(), deliver } = options;
  const { retentionMs = RETENTION_MS, onDispatched } = options;
  const requests = createRequests({ ...options, now, log });
  const deliverer = createDeliverer({ ...options, ...deliver, log });
  let loops: readonly Loop[] | undefined;
  let stopped = false;

  function wake(): void {
    deliverer.wake();
    for (const loop of loops ?? []) loop.wake();
  }

  /** Does what is asked, and then looks at once for what it left to do. */
  function thenWake<Args extends unknown[], T>(ask: (...args: Args) => Promise<T>) {
    return async (...args: Args): Promise<T> => {
      const answer = await ask(...args);
      wake();
      return answer;
    };
  }

  return {
    ...requests,
    dispatch: thenWake(requests.dispatch),
    sendTest: thenWake(requests.sendTest),
    replay: thenWake(requests.replay),
    activateWebhook: thenWake(requests.activateWebhook),
    deleteWebhook: thenWake(requests.deleteWebhook),
    redeliver: thenWake(requests.redeliver),
    resolve: thenWake(requests.resolve),
    async attempt(deliveryId) {
      const { id } = await requests.getDelivery(deliveryId);
      await deliverer.attempt(id);
      return requests.getDelivery(id);
    },
    start() {
      if (loops || stopped) return;
      deliverer.start();
      loops = [
        startDispatchLoop({
          store,
          log,
          onDispatched(report) {
            onDispatched?.(report);
            if (report.deliveries > 0) deliverer.wake();
          },
        }),
        startUpkeepLoop({ store, log, now, retentionMs, onDispatched: deliverer.wake }),
      ];
    },
    wake,
    async stop() {
      stopped = true;
      // What these make is still sent by those after them.
      await Promise.all((loops ?? []).map((loop) => loop.stop()));
      await deliverer.stop();
    },
  };
}

const RESOLVED: Readonly<Record<Resolution, readonly DeliveryState[]>> = {
  delivered: ["success"],
  resend: ["pending", "sending"],
  skip: ["failed"],
};

/** Whether a delivery is as `resolve` was asked to make it. What was neither in doubt nor failed may not be. */
export function isResolved({ state }: Delivery, resolution: Resolution): boolean {
  return RESOLVED[resolution].includes(state);
}
