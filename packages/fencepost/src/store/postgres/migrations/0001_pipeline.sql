-- Everything the pipeline keeps, in the order data flows. Applied once, in one transaction.

-- ── ingest ──────────────────────────────────────────────────────────────────────────────────────────────
-- One row a stream: the cursor, the term of its leader and the last seq given out. A commit of ingest locks
-- this row first, so events commit in the order of their seq.
CREATE TABLE fencepost.streams (
  stream         text COLLATE "C" PRIMARY KEY,
  epoch          text NOT NULL,
  passphrase     text NOT NULL,
  next_ledger    bigint NOT NULL,            -- every ledger below it is stored, for the filter set below
  filters_hash   text NOT NULL,
  seq            bigint NOT NULL DEFAULT 0,  -- the last one given out
  latest_ledger  bigint,                     -- the newest ledger seen at the source
  halted         text,                       -- why the stream stopped; NULL while it runs
  term           bigint NOT NULL DEFAULT 0,
  holder         text,
  holder_pid     integer,
  holder_started timestamptz,
  lease_until    timestamptz,
  updated_at     timestamptz NOT NULL DEFAULT now()
);

-- What a stream watches. A contract added later reads up to the stream's cursor on its own, then joins it.
CREATE TABLE fencepost.watches (
  stream       text COLLATE "C" NOT NULL REFERENCES fencepost.streams,
  contract_id  text COLLATE "C" NOT NULL,
  start_ledger bigint NOT NULL,
  next_ledger  bigint,                       -- NULL: it has joined the stream's cursor
  PRIMARY KEY (stream, contract_id)
);

CREATE TABLE fencepost.events (
  token        text COLLATE "C" PRIMARY KEY,
  stream       text COLLATE "C" NOT NULL,
  seq          bigint NOT NULL,
  type         text NOT NULL,
  contract_id  text COLLATE "C",
  tx_hash      text NOT NULL,
  ledger       bigint NOT NULL,
  closed_at    timestamptz NOT NULL,
  topics       text[] NOT NULL,              -- base64 XDR, as the source gave it
  value        text NOT NULL,
  content_hash bytea NOT NULL,
  late         boolean NOT NULL DEFAULT false,
  stored_at    timestamptz NOT NULL DEFAULT now(),
  UNIQUE (stream, seq)
);

-- The same token with other content: an alarm, kept in its own transaction.
CREATE TABLE fencepost.conflicts (
  token       text COLLATE "C" NOT NULL,
  seen_hash   bytea NOT NULL,
  stored_hash bytea NOT NULL,
  seen        jsonb NOT NULL,
  found_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (token, seen_hash)
);

CREATE TABLE fencepost.gaps (
  stream      text COLLATE "C" NOT NULL,
  from_ledger bigint NOT NULL,
  to_ledger   bigint NOT NULL,
  found_at    timestamptz NOT NULL DEFAULT now(),
  accepted_at timestamptz,                   -- the owner told the stream to go on
  PRIMARY KEY (stream, from_ledger)
);

-- ── project ─────────────────────────────────────────────────────────────────────────────────────────────
CREATE TABLE fencepost.projections (
  name           text COLLATE "C" NOT NULL,
  version        integer NOT NULL,
  stream         text COLLATE "C" NOT NULL,
  cursor         bigint NOT NULL DEFAULT 0,  -- the last seq applied
  emit_after     bigint,                     -- messages of events up to it are kept silent; NULL: all are
  state          text NOT NULL CHECK (state IN ('live', 'building', 'retired')),
  fingerprint    text NOT NULL,
  term           bigint NOT NULL DEFAULT 0,
  holder         text,
  holder_pid     integer,
  holder_started timestamptz,
  lease_until    timestamptz,
  stopped_token  text COLLATE "C",           -- the event whose handler throws
  stopped_event  text,
  stopped_error  text,
  stopped_at     timestamptz,
  updated_at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (name, version)
);
CREATE UNIQUE INDEX projections_one_live ON fencepost.projections (name) WHERE state = 'live';

-- What was set aside with its reason: projection is '' for what could not be decoded at ingest, otherwise the
-- version that it does not fit. What a version before the live one set aside is deleted when that one is retired.
CREATE TABLE fencepost.quarantine (
  token      text COLLATE "C" NOT NULL,
  projection text COLLATE "C" NOT NULL,
  version    integer NOT NULL DEFAULT 0,
  reason     text NOT NULL,
  found_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (projection, token, version)
);

-- Events that a person told a projection to pass over.
CREATE TABLE fencepost.skips (
  projection text COLLATE "C" NOT NULL,
  token      text COLLATE "C" NOT NULL,
  reason     text NOT NULL,
  skipped_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (projection, token)
);

-- Narrow, and kept as long as its event: it remembers what was dispatched when bodies are long gone.
CREATE TABLE fencepost.messages (
  event_id     text COLLATE "C" PRIMARY KEY,
  token        text COLLATE "C",
  type         text NOT NULL,
  projection   text COLLATE "C",             -- NULL: the caller of dispatch() made it
  state        text NOT NULL CHECK (state IN ('emitted', 'suppressed', 'dispatched', 'test')),
  content_hash bytea NOT NULL,
  occurred_at  timestamptz NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX messages_by_token ON fencepost.messages (token) WHERE token IS NOT NULL;
CREATE INDEX messages_by_time ON fencepost.messages (occurred_at, event_id);

CREATE TABLE fencepost.message_bodies (
  event_id text COLLATE "C" PRIMARY KEY REFERENCES fencepost.messages ON DELETE CASCADE,
  body     bytea NOT NULL                    -- the exact bytes that are signed and sent
);

-- ── dispatch ────────────────────────────────────────────────────────────────────────────────────────────
CREATE TABLE fencepost.webhooks (
  id              text COLLATE "C" PRIMARY KEY,
  url             text NOT NULL,
  types           text[] NOT NULL,           -- '*' stands for every type
  secrets         text[] NOT NULL,           -- newest first; all of them sign
  description     text NOT NULL DEFAULT '',
  active          boolean NOT NULL DEFAULT true,
  disabled_reason text,
  on_unknown      text NOT NULL DEFAULT 'resend' CHECK (on_unknown IN ('resend', 'hold')),
  deliver_from    timestamptz NOT NULL DEFAULT now(),
  created_at      timestamptz NOT NULL DEFAULT now()
);

-- Messages that wait for their fan-out; a row is deleted when every matching webhook has its delivery.
CREATE TABLE fencepost.outbox (
  id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id      text COLLATE "C" NOT NULL UNIQUE,
  after_webhook text COLLATE "C" NOT NULL DEFAULT ''
);

-- Webhooks that look back over messages which a running fan-out could not offer them.
CREATE TABLE fencepost.catch_ups (
  webhook_id     text COLLATE "C" PRIMARY KEY REFERENCES fencepost.webhooks,
  after_time     timestamptz NOT NULL,
  after_event_id text COLLATE "C" NOT NULL DEFAULT ''
);

-- ── deliver ─────────────────────────────────────────────────────────────────────────────────────────────
CREATE SEQUENCE fencepost.delivery_fence;

CREATE TABLE fencepost.deliveries (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id       text COLLATE "C" NOT NULL,
  webhook_id     text COLLATE "C" NOT NULL REFERENCES fencepost.webhooks,
  state          text NOT NULL DEFAULT 'pending'
                 CHECK (state IN ('pending', 'sending', 'success', 'failed', 'in_doubt')),
  attempts       integer NOT NULL DEFAULT 0,
  tries          integer NOT NULL DEFAULT 0, -- attempts since the last redeliver: what the schedule counts
  last_timestamp bigint NOT NULL DEFAULT 0,  -- of the last attempt, unix seconds: signed, and growing
  last_status    integer,
  last_error     text,
  next_at        timestamptz,
  created_at     timestamptz NOT NULL DEFAULT now(),
  finished_at    timestamptz,
  UNIQUE (event_id, webhook_id)
) WITH (fillfactor = 80);
CREATE INDEX deliveries_by_webhook ON fencepost.deliveries (webhook_id, id);

-- Only what is due or claimed, in lanes by webhook. A claimed row is due again when its lease has passed.
CREATE TABLE fencepost.delivery_queue (
  delivery_id bigint PRIMARY KEY,
  webhook_id  text COLLATE "C" NOT NULL,
  next_at     timestamptz NOT NULL,
  fence       bigint,                        -- of the claim that holds it; NULL: nobody's
  attempted   boolean NOT NULL DEFAULT false -- an attempt is on record under this fence
) WITH (fillfactor = 50);
CREATE INDEX delivery_queue_due ON fencepost.delivery_queue (webhook_id, next_at);

CREATE TABLE fencepost.attempts (
  delivery_id  bigint NOT NULL,
  number       integer NOT NULL,
  fence        bigint NOT NULL,
  url          text NOT NULL,
  "timestamp"  bigint NOT NULL,              -- the signed one, unix seconds
  started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at  timestamptz,
  outcome      text CHECK (outcome IN ('delivered', 'rejected', 'not_sent', 'unknown')),
  status       integer,
  error        text,
  response     text,
  late_outcome text,                         -- what a worker reported after it had lost its claim
  PRIMARY KEY (delivery_id, number)
);
