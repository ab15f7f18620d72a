import type { Chain } from "./chain.ts";
import type { GetEventsResult } from "./getEvents.ts";

const MAX_PAGES = 16;
const MAX_ROWS = 20_000;

/** Pages that were served, for the faults that serve one again. Only ever to the same filters on the same chain. */
export interface ServedPages {
  remember(chain: Chain, params: unknown, page: GetEventsResult): void;
  /** The page that led to the cursor of this request, and those from further back. */
  earlier(
    chain: Chain,
    params: unknown,
  ): { same: GetEventsResult | undefined; old: readonly GetEventsResult[] };
}

export function rememberPages(): ServedPages {
  const pages: { chain: Chain; filters: string; page: GetEventsResult }[] = [];
  return {
    remember(chain, params, page) {
      pages.push({ chain, filters: filtersOf(params), page });
      const rows = () => pages.reduce((sum, { page: { events } }) => sum + events.length, 0);
      while (pages.length > 1 && (pages.length > MAX_PAGES || rows() > MAX_ROWS)) pages.shift();
    },
    earlier(chain, params) {
      const cursor = (params as { pagination?: { cursor?: string } } | undefined)?.pagination?.cursor ?? "";
      const filters = filtersOf(params);
      const mine = pages.filter((p) => p.chain === chain && p.filters === filters).map(({ page }) => page);
      return {
        same: mine.find((page) => page.cursor === cursor),
        old: mine.filter((page) => page.cursor < cursor),
      };
    },
  };
}

function filtersOf(params: unknown): string {
  return JSON.stringify((params as { filters?: unknown } | undefined)?.filters ?? []);
}
