-- The spine: inbox, queue of sessions, journal of turns, outbox, channels' maps, events.
-- Times are epoch milliseconds. Order comes from `seq` alone. States are small integers, so that partial indexes stay short:
-- inbox.state  0 waiting, 1 running, 2 done, 3 dead            (open: < 2)
-- outbox.state 0 pending, 1 held, 2 sending, 3 uncertain, 4 sent, 5 unknown, 6 failed, 7 expired   (open: < 4)

-- One row a session: the queue that claims go over.
-- Written by accept (creates, counts), claim (leases), absorb, park, release, finish (frees), recover, commands. Never deleted.
CREATE TABLE session (
    id            INTEGER PRIMARY KEY,
    key           TEXT    NOT NULL UNIQUE,
    agent         TEXT    NOT NULL,
    mode          TEXT,                            -- the queue mode set in chat; NULL = the channel's
    generation    INTEGER NOT NULL DEFAULT 0,      -- raised by /new; history is read within one
    pending       INTEGER NOT NULL DEFAULT 0,      -- waiting entries
    suspects      INTEGER NOT NULL DEFAULT 0,      -- of them, those that ran when a process died
    ready_seq     INTEGER,                         -- place in the round, reassigned whenever the session is freed;
                                                   -- NULL unless entries wait and nobody works on them
    not_before    INTEGER NOT NULL DEFAULT 0,      -- not claimed before: the later of hold_until and the head's own
    hold_until    INTEGER NOT NULL DEFAULT 0,      -- debounce, back-off or parking
    parked_until  INTEGER,
    lease_boot    TEXT,                            -- NULL = free
    lease_turn    TEXT,
    lease_sender  TEXT,                            -- whose turn it is: only their `steer` entries are absorbed
    lease_alone   INTEGER NOT NULL DEFAULT 0,      -- nothing runs beside it: a crash counts
    epoch         INTEGER NOT NULL DEFAULT 0,      -- raised by every claim and takeover; fences completions
    stop_turn     TEXT,                            -- the turn that was told to stop
    messages      INTEGER NOT NULL DEFAULT 0,
    tokens_in     INTEGER NOT NULL DEFAULT 0,
    tokens_out    INTEGER NOT NULL DEFAULT 0,
    tokens_cached INTEGER NOT NULL DEFAULT 0,
    estimated     INTEGER NOT NULL DEFAULT 0,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL
);
CREATE INDEX session_ready   ON session (ready_seq, not_before, suspects) WHERE ready_seq IS NOT NULL;
CREATE INDEX session_suspect ON session (ready_seq, not_before, suspects) WHERE ready_seq IS NOT NULL AND suspects > 0;
CREATE INDEX session_due     ON session (not_before) WHERE ready_seq IS NOT NULL;
CREATE INDEX session_leased  ON session (lease_boot) WHERE lease_boot IS NOT NULL;

-- One row a message.
-- Written by accept (creates), claim, absorb, park, release, finish, recover, resolve_dead. Deleted by prune (settled ones
-- once their dedupe key may be forgotten, dead letters once they are old).
CREATE TABLE inbox (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice: pages rely on it
    id          TEXT    NOT NULL UNIQUE,
    channel     TEXT    NOT NULL,
    platform_id TEXT    NOT NULL,
    fingerprint TEXT,
    session     INTEGER NOT NULL,
    sender      TEXT    NOT NULL,                  -- channel and sender id: entries of different ones never share a turn
    role        TEXT    NOT NULL,
    mode        TEXT    NOT NULL,
    state       INTEGER NOT NULL,
    collapsed   INTEGER NOT NULL DEFAULT 0,
    suspect     INTEGER NOT NULL DEFAULT 0,
    starts      INTEGER NOT NULL DEFAULT 0,        -- claims
    attempts    INTEGER NOT NULL DEFAULT 0,        -- retryable failures
    crashes     INTEGER NOT NULL DEFAULT 0,        -- crashes while it ran alone
    not_before  INTEGER NOT NULL DEFAULT 0,
    hold        TEXT,                              -- the boot in which a caller waits for the answer
    turn        TEXT,                              -- the turn that runs, ran or will resume it
    silent      TEXT,
    error       TEXT,
    merged_into TEXT,
    received_at INTEGER NOT NULL,
    settled_at  INTEGER,
    bytes       INTEGER NOT NULL,
    payload     TEXT    NOT NULL,                  -- Inbound as JSON
    UNIQUE (channel, platform_id)
);
CREATE INDEX inbox_open    ON inbox (session, seq) WHERE state < 2;
CREATE INDEX inbox_settled ON inbox (settled_at) WHERE state = 2;
CREATE INDEX inbox_dead    ON inbox (seq) WHERE state = 3;

-- One row a turn.
-- Written by claim (creates), absorb, finish, release, recover. Never deleted.
CREATE TABLE turn (
    seq           INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,
    session       INTEGER NOT NULL,
    state         TEXT    NOT NULL,                -- running replied silent failed stopped
    reason        TEXT,
    entry         TEXT    NOT NULL,                -- the newest message: the one it answers
    entries       TEXT    NOT NULL,                -- all of them: ids as a JSON array
    received_at   INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    tokens_in     INTEGER NOT NULL DEFAULT 0,
    tokens_out    INTEGER NOT NULL DEFAULT 0,
    tokens_cached INTEGER NOT NULL DEFAULT 0,
    estimated     INTEGER NOT NULL DEFAULT 0,
    notes         TEXT    NOT NULL DEFAULT '[]'
);
CREATE INDEX turn_session ON turn (session, seq);

-- One row a model or tool call.
-- Written by record and finish; bodies emptied by prune. Never deleted.
CREATE TABLE step (
    turn          TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    round         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    kind          TEXT    NOT NULL,                -- llm tool
    call_id       TEXT,
    name          TEXT    NOT NULL,
    effect        TEXT,
    state         TEXT    NOT NULL,                -- started finished failed interrupted
    args          TEXT,                            -- JSON; NULL once emptied
    result        TEXT,                            -- JSON; NULL once emptied
    started_at    INTEGER NOT NULL,
    ms            INTEGER NOT NULL,
    tokens_in     INTEGER NOT NULL,
    tokens_out    INTEGER NOT NULL,
    tokens_cached INTEGER NOT NULL,
    estimated     INTEGER NOT NULL,
    PRIMARY KEY (turn, id)
);
CREATE INDEX step_bodies ON step (started_at) WHERE args IS NOT NULL;

-- What was said, as the model sees it again.
-- Written by finish. Never deleted.
CREATE TABLE message (
    seq        INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    turn       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    place      INTEGER NOT NULL,                   -- its number within the session, from 0, all generations
    body       TEXT    NOT NULL                    -- Message as JSON
);
CREATE INDEX message_session ON message (session, generation, seq);

-- One row an outgoing platform message.
-- Written by accept (notices), finish, release (apologies), next_part, settle_part, handed_over, release_hold, recover.
-- Deleted by replace_parts (unsent ones) and prune (settled ones).
CREATE TABLE outbox (
    seq          INTEGER PRIMARY KEY,
    id           TEXT    NOT NULL UNIQUE,
    reply_id     TEXT    NOT NULL,                 -- the id of the first part of its reply
    channel      TEXT    NOT NULL,
    lane         TEXT    NOT NULL,
    place        INTEGER NOT NULL,                 -- order within the lane: place, then sub
    sub          INTEGER NOT NULL DEFAULT 0,       -- order among parts that replaced one
    entry        TEXT,
    in_reply_to  TEXT,
    address      TEXT    NOT NULL,                 -- Address.data as JSON
    part_seq     INTEGER NOT NULL,
    last         INTEGER NOT NULL,
    text         TEXT    NOT NULL,
    body         TEXT    NOT NULL,                 -- Part.body as JSON
    reply        TEXT,                             -- Reply as JSON, with the first part only
    level        TEXT    NOT NULL,                 -- rich plain
    state        INTEGER NOT NULL,
    doubt        INTEGER NOT NULL DEFAULT 0,       -- being looked into, not being sent
    resend       INTEGER NOT NULL DEFAULT 0,
    epoch        INTEGER NOT NULL DEFAULT 0,       -- raised by every claim and takeover; fences completions
    boot         TEXT,                             -- who sends or holds it
    attempts     INTEGER NOT NULL DEFAULT 0,
    not_before   INTEGER NOT NULL DEFAULT 0,
    first_try_at INTEGER,
    error        TEXT,
    receipt      TEXT,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    settled_at   INTEGER
);
CREATE INDEX outbox_open    ON outbox (channel, lane, place, sub) WHERE state < 4;
CREATE INDEX outbox_entry   ON outbox (entry) WHERE entry IS NOT NULL;
CREATE INDEX outbox_settled ON outbox (settled_at) WHERE settled_at IS NOT NULL;

-- The channels' own small maps: poll positions, tokens, learned permissions.
-- Written by accept (cursors) and kv_set. Never deleted.
CREATE TABLE channel_kv (
    channel TEXT NOT NULL,
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (channel, key)
) WITHOUT ROWID;

-- What watchers see.
-- Written by accept, claim, record, finish, release, recover. Deleted by prune.
CREATE TABLE event (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,     -- never used twice: it is the SSE id
    task    TEXT    NOT NULL,
    session TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    data    TEXT    NOT NULL,                      -- a JSON object
    at      INTEGER NOT NULL
);
CREATE INDEX event_task ON event (task, seq);

-- One row that `probe` writes to find out whether commits work. Never deleted.
CREATE TABLE probe (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL
);
