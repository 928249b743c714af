-- What older messages of a conversation come to, once they are no longer sent to the model word for word.

-- One row a session and generation: the newest summary stands for all messages up to `upto`.
-- Written by finish (takes the place of the one before it). Never deleted.
CREATE TABLE summary (
    session    INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    upto       INTEGER NOT NULL,                   -- message.seq: the last message it stands for
    messages   INTEGER NOT NULL,                   -- how many messages it stands for, those of earlier summaries included
    text       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (session, generation)
) WITHOUT ROWID;
