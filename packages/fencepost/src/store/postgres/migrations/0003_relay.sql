-- Deliveries in Redis: what is known about the servers that messages were relayed to. One row.
CREATE TABLE fencepost.relay (
  one           boolean PRIMARY KEY DEFAULT true CHECK (one),
  run_ids       text[] NOT NULL,
  -- Since when, the oldest of the messages that were relayed since then, and of those of the hour or more before it.
  since         timestamptz NOT NULL DEFAULT now(),
  oldest        timestamptz,
  oldest_before timestamptz
);

-- Offered again: a server was lost, and perhaps with it what this message was made into.
ALTER TABLE fencepost.outbox ADD COLUMN again boolean NOT NULL DEFAULT false;
