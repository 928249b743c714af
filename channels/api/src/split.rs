//! Cutting a long text into pieces that each fit one platform message, without breaking code fences. Pure.
