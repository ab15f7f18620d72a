import type { Configuration } from "./step.ts";

const BASE = {
  events: 2,
  workers: 2,
  claims: 3,
  onUnknown: "resend",
  forgery: false,
  webhook: "there",
  caller: false,
  reoffers: false,
  redelivers: false,
  prunes: false,
} satisfies Partial<Configuration>;

/** Each stage with the one before it, at full size. */
export const PAIRS = {
  ingestProject: {
    ...BASE,
    name: "ingest → project, a source that repeats and forges",
    first: "ingest",
    last: "project",
    forgery: true,
  },
  projectDispatch: {
    ...BASE,
    name: "project → dispatch, a webhook added meanwhile, outbox rows offered again",
    first: "project",
    last: "dispatch",
    webhook: "late",
    reoffers: true,
  },
  dispatchDeliver: {
    ...BASE,
    name: "dispatch → deliver → receive, a webhook added meanwhile",
    first: "dispatch",
    last: "deliver",
    claims: 2,
    webhook: "late",
  },
  callers: {
    ...BASE,
    name: "concurrent callers of dispatch() → deliver → receive",
    first: "dispatch",
    last: "deliver",
    claims: 2,
    caller: true,
  },
  resend: {
    ...BASE,
    name: "deliver → receive under resend, queue rows offered again",
    first: "deliver",
    last: "deliver",
    reoffers: true,
  },
  hold: {
    ...BASE,
    name: "deliver → receive under hold",
    first: "deliver",
    last: "deliver",
    onUnknown: "hold",
  },
  ask: {
    ...BASE,
    name: "deliver → receive under ask, an inbox that forgets",
    first: "deliver",
    last: "deliver",
    events: 1,
    onUnknown: "ask",
    prunes: true,
  },
} satisfies Record<string, Configuration>;

/** One delivery, and everything that a person or a restored row can do to it. */
export const PERSONS = {
  resend: {
    ...BASE,
    name: "deliver → receive under resend, a person sends again",
    first: "deliver",
    last: "deliver",
    events: 1,
    reoffers: true,
    redelivers: true,
  },
  hold: {
    ...BASE,
    name: "deliver → receive under hold, a person sends again once",
    first: "deliver",
    last: "deliver",
    events: 1,
    onUnknown: "hold",
    reoffers: true,
    redelivers: true,
  },
} satisfies Record<string, Configuration>;

/** From the source to the customer's effects. */
export const LINES = {
  resend: {
    ...BASE,
    name: "the whole line under resend, one event",
    first: "ingest",
    last: "deliver",
    events: 1,
  },
  hold: {
    ...BASE,
    name: "the whole line under hold, one event",
    first: "ingest",
    last: "deliver",
    events: 1,
    onUnknown: "hold",
  },
  ask: {
    ...BASE,
    name: "the whole line under ask, one event, one commit of a stage at a time",
    first: "ingest",
    last: "deliver",
    events: 1,
    workers: 1,
    claims: 2,
    onUnknown: "ask",
  },
  twoEvents: {
    ...BASE,
    name: "the whole line under resend, two events, one commit of a stage at a time",
    first: "ingest",
    last: "deliver",
    workers: 1,
    claims: 2,
  },
} satisfies Record<string, Configuration>;
