-- What one sender took since a day is asked for in chat by anybody who may write: it must not read everybody's month.
CREATE INDEX spend_sender ON spend (sender, day);
