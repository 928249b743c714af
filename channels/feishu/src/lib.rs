//! Feishu and Lark.
