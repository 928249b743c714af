-- What turns do beyond their own answer: plans, words to other chats, sub-agents.

-- One row a session: the plan of its long task.
-- Written by put_plan. Never deleted; one of an earlier generation is no plan any more.
CREATE TABLE plan (
    session    INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    turn       TEXT    NOT NULL,                   -- the turn that changed it last
    items      TEXT    NOT NULL,                   -- JSON: id, text, state
    open       INTEGER NOT NULL,                   -- something of it is still to be done
    updated_at INTEGER NOT NULL
);
CREATE INDEX plan_open ON plan (session) WHERE open;

-- One row a sub-agent: a session of its own that works for another one.
-- Written by spawn; ended by finish, release, recover and whatever stops its parent. Never deleted.
CREATE TABLE subagent (
    session    INTEGER PRIMARY KEY,
    parent     TEXT    NOT NULL,                   -- the key of the session that hears of it
    label      TEXT    NOT NULL,
    tools      TEXT,                               -- JSON: the only tools it may use; NULL = those of its parent
    rounds     INTEGER NOT NULL,                   -- the most model calls of a turn
    created_at INTEGER NOT NULL,
    ended_at   INTEGER
);
CREATE INDEX subagent_open ON subagent (parent) WHERE ended_at IS NULL;
