-- The index of the notes. The files in the workspaces are the truth: all of this can be made again, and is when it is
-- damaged or missing (`forget_notes`).

-- One row a note. Written and deleted by put_notes.
CREATE TABLE note (
    id INTEGER PRIMARY KEY,
    agent TEXT NOT NULL,
    path TEXT NOT NULL,
    -- Who may see it: `owner`, `shared` or `chat:<folder>`.
    area TEXT NOT NULL,
    -- What the file looked like when it was read (0 = too new to be sure), and the hash of what was read.
    stamp INTEGER NOT NULL,
    hash BLOB NOT NULL,
    UNIQUE (agent, path)
);

-- Its passages. Written and deleted with their note; `sketch` (a bit a dimension) by sketch_notes and put_vectors.
CREATE TABLE note_passage (
    id INTEGER PRIMARY KEY,
    note INTEGER NOT NULL,
    -- Stands for the note's agent and area: a search looks at those of its scope alone.
    place TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    heading TEXT NOT NULL,
    text TEXT NOT NULL,
    hash BLOB NOT NULL,
    sketch BLOB
);
CREATE INDEX note_passage_note ON note_passage (note);
CREATE INDEX note_passage_hash ON note_passage (hash);
CREATE INDEX note_passage_sketch ON note_passage (place, sketch) WHERE sketch IS NOT NULL;
CREATE INDEX note_passage_bare ON note_passage (id) WHERE sketch IS NULL;

-- The words of the passages, already cut: pairs of characters of Chinese, words of other languages. Rows are the passages'.
CREATE VIRTUAL TABLE note_words USING fts5 (
    place, title, body, content = '', contentless_delete = 1, tokenize = 'porter unicode61 remove_diacritics 0'
);

-- What the embedding model said of a text, kept by the text's hash. Written by put_vectors; deleted by forget_vectors.
CREATE TABLE note_vector (
    id INTEGER PRIMARY KEY,
    model TEXT NOT NULL,
    hash BLOB NOT NULL,
    -- 32-bit floats, little-endian, of length 1.
    vector BLOB NOT NULL,
    UNIQUE (model, hash)
);
