-- What ingest keeps beside its cursor: a ledger by which another life of the chain is told, what was healed and by
-- whom, contracts that events of others named, and a past that is still to be read.

ALTER TABLE fencepost.streams
  ADD COLUMN anchor_ledger    bigint,               -- a closed ledger of the chain that is read; NULL: none yet
  ADD COLUMN anchor_hash      text,                 -- NULL: the source does not tell it
  ADD COLUMN anchor_closed_at bigint,               -- unix seconds
  ADD COLUMN discovered_seq   bigint NOT NULL DEFAULT 0; -- events up to it were looked at for contracts they name
UPDATE fencepost.streams SET discovered_seq = seq;

ALTER TABLE fencepost.watches
  ADD COLUMN found_by     text,                     -- the rule that found it; NULL: the config names it
  ADD COLUMN found_in     text COLLATE "C",         -- the token of the event that names it
  ADD COLUMN earlier_next bigint,                   -- its start was set back: this part of its past is still to be
  ADD COLUMN earlier_end  bigint;                   -- read, up to here, which is not in it; NULL: nothing is

-- What events of factories named, for good: projections go by it, also when the chain began anew or a rule is gone.
CREATE TABLE fencepost.discoveries (
  contract_id text COLLATE "C" NOT NULL,
  rule        text COLLATE "C" NOT NULL,
  stream      text COLLATE "C" NOT NULL,
  epoch       text NOT NULL,
  ledger      bigint NOT NULL,                      -- of the first event that names it
  PRIMARY KEY (contract_id, rule, stream, epoch)
);

-- A hole may be filled in parts, and open again for a contract that is added later.
ALTER TABLE fencepost.gaps
  DROP CONSTRAINT gaps_pkey,
  ADD COLUMN id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ADD COLUMN epoch     text NOT NULL DEFAULT '',
  ADD COLUMN healed_at timestamptz,
  ADD COLUMN healed_by text;                        -- the source that gave the ledgers
UPDATE fencepost.gaps g SET epoch = s.epoch FROM fencepost.streams s WHERE s.stream = g.stream;
CREATE UNIQUE INDEX gaps_open ON fencepost.gaps (stream, epoch, from_ledger) WHERE healed_at IS NULL;
