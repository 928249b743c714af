-- Sessions whose suspects wait behind a turn that runs are found too, so that none is forgotten when it ends.
DROP INDEX session_suspect;
CREATE INDEX session_suspect ON session (ready_seq, not_before, suspects) WHERE suspects > 0;
