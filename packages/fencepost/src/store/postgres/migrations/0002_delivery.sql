-- What the dispatcher needs beyond the pipeline: the life of a webhook, doubt that is asked about, strict order,
-- limits, retention, and the keys of the HTTP interface.

-- ── messages ────────────────────────────────────────────────────────────────────────────────────────────
-- The order in which messages are made: those of one projection are in the order of their events.
CREATE SEQUENCE fencepost.message_position;
ALTER TABLE fencepost.messages ADD COLUMN position bigint;
UPDATE fencepost.messages m SET position = o.n
  FROM (SELECT event_id, row_number() OVER (ORDER BY created_at, occurred_at, token) AS n FROM fencepost.messages) o
  WHERE o.event_id = m.event_id;
SELECT setval('fencepost.message_position', coalesce((SELECT max(position) FROM fencepost.messages), 0) + 1, false);
ALTER TABLE fencepost.messages ALTER COLUMN position SET DEFAULT nextval('fencepost.message_position'),
  ALTER COLUMN position SET NOT NULL;
CREATE UNIQUE INDEX messages_by_position ON fencepost.messages (position);

-- The outbox goes by that order too.
ALTER TABLE fencepost.outbox ALTER COLUMN id DROP IDENTITY;
UPDATE fencepost.outbox o SET id = -m.position FROM fencepost.messages m WHERE m.event_id = o.event_id;
UPDATE fencepost.outbox SET id = -id;
ALTER TABLE fencepost.outbox RENAME COLUMN id TO position;

-- The data of a message as jsonb, for filters. jsonb holds no NUL and no lone surrogate, which JSON text may have:
-- in a text that has one, each of them reads as U+FFFD. (JSON.stringify writes a surrogate as an escape only where
-- it is alone.)
CREATE FUNCTION fencepost.message_data(body bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN convert_from(body, 'UTF8')::jsonb -> 'data';
EXCEPTION WHEN untranslatable_character OR invalid_text_representation THEN
  RETURN regexp_replace(convert_from(body, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\1\\ufffd', 'g')::jsonb -> 'data';
END $$;

-- Whether a webhook with these types and this filter takes a message. '*' is every type but those of the system.
CREATE FUNCTION fencepost.takes(types text[], filter jsonb, type text, data jsonb) RETURNS boolean
  LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT (type = ANY (types) OR '*' = ANY (types) AND NOT starts_with(type, 'webhook.'))
     AND (filter IS NULL OR data @> filter)
$$;

-- ── webhooks ────────────────────────────────────────────────────────────────────────────────────────────
ALTER TABLE fencepost.webhooks
  DROP CONSTRAINT webhooks_on_unknown_check,
  ADD CONSTRAINT webhooks_on_unknown_check CHECK (on_unknown IN ('resend', 'hold', 'ask')),
  ADD COLUMN filter            jsonb,
  ADD COLUMN headers           jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN retry_on          text NOT NULL DEFAULT 'default' CHECK (retry_on IN ('default', 'all')),
  ADD COLUMN retry_schedule_ms float8[],         -- NULL: the schedule of the store
  ADD COLUMN jitter            float8 NOT NULL DEFAULT 0.5,
  ADD COLUMN ordering          text NOT NULL DEFAULT 'none' CHECK (ordering IN ('none', 'strict')),
  ADD COLUMN rate_per_second   float8,           -- NULL: no limit
  ADD COLUMN max_in_flight     integer,          -- NULL: no limit
  ADD COLUMN disable_after_ms  float8,           -- NULL: failing never disables it
  ADD COLUMN failing_since     timestamptz,
  ADD COLUMN disabled_at       timestamptz,
  ADD COLUMN told              boolean NOT NULL DEFAULT true, -- false: disabled by the system, and nobody knows yet
  ADD COLUMN pruned_until      timestamptz,      -- deliveries made until then may be gone
  ADD COLUMN deleted_at        timestamptz;
-- [{ "secret", "expires_at" }], newest first; those that have not expired sign.
ALTER TABLE fencepost.webhooks ALTER COLUMN secrets TYPE jsonb
  USING to_jsonb(secrets);
UPDATE fencepost.webhooks SET secrets =
  (SELECT coalesce(jsonb_agg(jsonb_build_object('secret', s, 'expires_at', NULL) ORDER BY n), '[]')
   FROM jsonb_array_elements_text(secrets) WITH ORDINALITY AS t(s, n));
UPDATE fencepost.webhooks SET disabled_at = now() WHERE NOT active;
-- Who gets messages, in the order of a fan-out: those that are not active cost it nothing.
CREATE INDEX webhooks_active ON fencepost.webhooks (id) WHERE active;
CREATE INDEX webhooks_untold ON fencepost.webhooks (id) WHERE NOT told;
CREATE INDEX webhooks_deleted ON fencepost.webhooks (id) WHERE deleted_at IS NOT NULL;

-- When a webhook with a rate may be claimed from again. Only those with a limit have a row; a claim locks it.
CREATE TABLE fencepost.webhook_pace (
  webhook_id text COLLATE "C" PRIMARY KEY REFERENCES fencepost.webhooks,
  free_at    timestamptz NOT NULL DEFAULT '-infinity'
);

-- ── deliveries ──────────────────────────────────────────────────────────────────────────────────────────
ALTER TABLE fencepost.deliveries
  ADD COLUMN asks            integer NOT NULL DEFAULT 0,  -- questions since the last attempt
  ADD COLUMN first_at        timestamptz,                 -- when the first attempt was put on record
  ADD COLUMN doubt_since     timestamptz,                 -- NULL: it is not in doubt
  ADD COLUMN strict_position bigint;                      -- of its message, until it succeeded; NULL: no strict order
UPDATE fencepost.deliveries d SET first_at = a.started_at FROM fencepost.attempts a
  WHERE a.delivery_id = d.id AND a.number = 1;
UPDATE fencepost.deliveries SET doubt_since = coalesce(finished_at, now()) WHERE state = 'in_doubt';
-- The first row of a webhook is the one that may be sent.
CREATE INDEX deliveries_strict ON fencepost.deliveries (webhook_id, strict_position) WHERE strict_position IS NOT NULL;
-- What waits for a person, or is asked about: few, and counted often. Not by the state, which every outcome would
-- then move in the index: here only those in doubt do.
CREATE INDEX deliveries_in_doubt ON fencepost.deliveries (webhook_id, id) WHERE doubt_since IS NOT NULL;

ALTER TABLE fencepost.delivery_queue
  ADD COLUMN asking boolean NOT NULL DEFAULT false, -- in doubt, and its endpoint is to be asked
  ADD COLUMN capped boolean NOT NULL DEFAULT false; -- claimed from a webhook that limits how many are, or a strict one
CREATE INDEX delivery_queue_capped ON fencepost.delivery_queue (webhook_id, next_at) WHERE capped;

-- ── upkeep ──────────────────────────────────────────────────────────────────────────────────────────────
-- How far the round that looks for what may go has come; it begins anew when it has seen all. Rows of messages stay
-- when their bodies go, so a round begins where the one before it left the first body: at `kept`.
CREATE TABLE fencepost.prune_rounds (
  what  text PRIMARY KEY,
  after bigint NOT NULL DEFAULT 0,
  kept  bigint                                    -- the first one with a body that this round has seen
);
INSERT INTO fencepost.prune_rounds (what) VALUES ('deliveries'), ('messages');

-- ── the HTTP interface ──────────────────────────────────────────────────────────────────────────────────
CREATE TABLE fencepost.api_keys (
  id         text COLLATE "C" PRIMARY KEY,
  name       text NOT NULL,
  key_hash   bytea NOT NULL UNIQUE,               -- sha256 of the key, which is random
  created_at timestamptz NOT NULL DEFAULT now(),
  revoked_at timestamptz
);

-- The answer to a POST with an Idempotency-Key, for as long as the key is remembered.
CREATE TABLE fencepost.idempotent_requests (
  api_key_id   text COLLATE "C" NOT NULL REFERENCES fencepost.api_keys ON DELETE CASCADE,
  key          text COLLATE "C" NOT NULL,
  request_hash bytea NOT NULL,                    -- of method, path and body
  seed         bytea NOT NULL,                    -- random; ids of what the request makes are derived from it
  claimed_at   timestamptz NOT NULL DEFAULT now(),
  status       integer,                           -- NULL: under way, or its process died
  answer       bytea,
  PRIMARY KEY (api_key_id, key)
);
CREATE INDEX idempotent_requests_by_time ON fencepost.idempotent_requests (claimed_at);
