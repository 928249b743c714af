//! The store on SQLite: one writer task with group commit and a small pool of readers.
