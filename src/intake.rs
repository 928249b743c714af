//! Station 4, the way in: gate, route, commands, and commit 1.

pub mod access;
