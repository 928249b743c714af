//! OneBot v11.
