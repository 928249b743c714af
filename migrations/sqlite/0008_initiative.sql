-- What the gateway does by itself: chats it can speak in first, schedules, heartbeats, calls of programs.
-- Times are epoch milliseconds.

-- One row a chat somebody wrote in: where its answers go, kept when the message is long gone.
-- Written by accept. Never deleted.
CREATE TABLE chat (
    session TEXT    NOT NULL PRIMARY KEY,          -- the session's key
    channel TEXT    NOT NULL,
    peer    TEXT    NOT NULL,                      -- Conversation.id
    direct  INTEGER NOT NULL,
    agent   TEXT    NOT NULL,
    role    TEXT    NOT NULL,                      -- of whoever wrote last
    place   TEXT    NOT NULL,                      -- Place as JSON: conversation, address, sender
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX chat_owner ON chat (seen_at) WHERE direct AND role = 'owner';
CREATE INDEX chat_peer  ON chat (channel, peer);

-- One row a schedule. `slot` is the time it is due by its own words, `due_at` when it runs (later after a failure or by
-- stagger); both NULL = it runs no more.
-- Written by add, edit, fire (advances), reap, stop. Deleted by cancel, and by reap when it was to run once and did.
CREATE TABLE schedule (
    id         TEXT    NOT NULL PRIMARY KEY,
    creator    TEXT    NOT NULL,                   -- channel and sender id: what limits count by
    agent      TEXT    NOT NULL,
    title      TEXT    NOT NULL,
    text       TEXT    NOT NULL,                   -- what is to be done
    spec       TEXT    NOT NULL,                   -- When as JSON
    tz         TEXT    NOT NULL,                   -- the zone its times are shown in
    terms      TEXT    NOT NULL,                   -- Terms as JSON: place, role, session, model
    slot       INTEGER,
    due_at     INTEGER,
    state      TEXT    NOT NULL,                   -- active done failed stopped
    failures   INTEGER NOT NULL DEFAULT 0,         -- in a row
    runs       INTEGER NOT NULL DEFAULT 0,
    entry      TEXT,                               -- the inbox row of the run that has not been seen to end
    last_entry TEXT,
    last_at    INTEGER,
    error      TEXT,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX schedule_due     ON schedule (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX schedule_running ON schedule (entry) WHERE entry IS NOT NULL;
CREATE INDEX schedule_creator ON schedule (creator);

-- One row an agent that ticks.
-- Written by tick. Never deleted.
CREATE TABLE heartbeat (
    agent  TEXT    NOT NULL PRIMARY KEY,
    slot   INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    result TEXT    NOT NULL,                       -- ran, or why it did not
    entry  TEXT                                    -- the inbox row of the last tick that ran
) WITHOUT ROWID;

-- One row a call of /hooks/wake or /hooks/agent.
-- Written by call (creates) and wake (gives it its row of the inbox). Deleted by prune.
CREATE TABLE hook (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    key         TEXT    UNIQUE,                    -- Idempotency-Key
    fingerprint TEXT    NOT NULL,                  -- of the body
    kind        TEXT    NOT NULL,                  -- wake agent
    agent       TEXT    NOT NULL,
    text        TEXT    NOT NULL,
    due_at      INTEGER NOT NULL DEFAULT 0,        -- a wake waits for this time
    entry       TEXT,                              -- the inbox row it became
    created_at  INTEGER NOT NULL
);
CREATE INDEX hook_waiting ON hook (agent, seq) WHERE entry IS NULL;
CREATE INDEX hook_created ON hook (created_at);

-- What ticks have said lately is found without going over every message.
CREATE INDEX inbox_errand ON inbox (session, seq) WHERE errand IS NOT NULL;
