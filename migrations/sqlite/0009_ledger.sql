-- What models cost, and what a session chose for itself.

-- One row a call of a model that was answered: what it took and what it cost. Sums are made of these rows alone.
-- Written by record and finish (with the step it belongs to) and by spend (what has no step: transcriptions, embeddings).
-- Never deleted: it outlives the bodies of the steps.
CREATE TABLE spend (
    seq                INTEGER PRIMARY KEY,
    turn               TEXT,                        -- NULL: outside of any turn
    id                 TEXT    NOT NULL,            -- the step's, or one of its own
    session            INTEGER,
    agent              TEXT    NOT NULL,
    sender             TEXT    NOT NULL,            -- channel and sender id, as in inbox; '' = nobody
    model              TEXT    NOT NULL,            -- its name in the configuration
    purpose            TEXT    NOT NULL,            -- turn, or what else the model was asked for
    day                TEXT    NOT NULL,            -- 2026-11-30, by the gateway's time zone when it was paid
    at                 INTEGER NOT NULL,
    tokens_in          INTEGER NOT NULL,
    tokens_out         INTEGER NOT NULL,
    tokens_cached      INTEGER NOT NULL,            -- of tokens_in, those read from the provider's cache
    tokens_cache_write INTEGER NOT NULL,            -- of tokens_in, those written to it
    estimated          INTEGER NOT NULL,
    currency           TEXT,                        -- NULL: the model has no price
    nano               INTEGER NOT NULL             -- billionths of the currency's unit
);
CREATE UNIQUE INDEX spend_step    ON spend (turn, id);
CREATE INDEX        spend_day     ON spend (day);
CREATE INDEX        spend_session ON spend (session, day);

-- The model that was chosen with /model; NULL = the agent's. Written by finish.
ALTER TABLE session ADD COLUMN model TEXT;
-- What stands below answers since /usage: tokens, full; NULL = nothing. Written by accept.
ALTER TABLE session ADD COLUMN footer TEXT;
