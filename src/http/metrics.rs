//! `GET /metrics`: the gateway's figures in Prometheus' text format, for whoever holds the token.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use tracing::warn;

use super::{Server, error::Refusal};
use crate::{ledger::Meter, supervisor::ChannelHealth};

/// The most dead letters that are counted: whoever has so many has other worries.
const DEAD_COUNTED: u32 = 1000;

/// A figure of each channel: its name, its type, what it tells, and how it is read at a time.
type Figure = (&'static str, &'static str, &'static str, fn(&ChannelHealth, i64) -> Option<f64>);

/// What is told of each channel.
const FIGURES: [Figure; 6] = [
    ("up", "gauge", "1 when the channel runs and is not known to be disconnected.", |health, _| {
        Some(f64::from(u8::from(health.is_up())))
    }),
    ("restarts_total", "counter", "Times its adapter was started again.", |health, _| Some(health.restarts.into())),
    ("in_total", "counter", "Messages that came.", |health, _| Some(health.in_total as f64)),
    ("out_total", "counter", "Parts of answers that were sent.", |health, _| Some(health.out_total as f64)),
    ("last_in_seconds", "gauge", "Seconds since the last message came; missing when none did.", |health, now| {
        Some(seconds(now, health.last_in?))
    }),
    ("last_out_seconds", "gauge", "Seconds since the last part was sent; missing when none was.", |health, now| {
        Some(seconds(now, health.last_out?))
    }),
];

fn seconds(now: i64, then: i64) -> f64 {
    now.saturating_sub(then).max(0) as f64 / 1000.0
}

/// The page.
pub async fn page(State(server): State<Arc<Server>>) -> Response {
    match text(&server).await {
        Ok(text) => {
            (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => {
            warn!(%error, "the figures could not be read");
            Refusal::unavailable().into_response()
        }
    }
}

/// What models took and cost since the process started.
fn models(text: &mut String, meters: &BTreeMap<String, Meter>) {
    let head = |text: &mut String, name: &str, help: &str| {
        let _ = writeln!(text, "# HELP crawfish_model_{name} {help}\n# TYPE crawfish_model_{name} counter");
    };
    head(text, "calls_total", "Answers of the model.");
    for (name, meter) in meters {
        let _ = writeln!(text, "crawfish_model_calls_total{{model=\"{name}\"}} {}", meter.calls);
    }
    head(text, "tokens_total", "Tokens; those read from the provider's cache are part of the input.");
    for (name, Meter { usage, .. }) in meters {
        for (kind, tokens) in [("input", usage.input), ("output", usage.output), ("cached", usage.cached)] {
            let _ = writeln!(text, "crawfish_model_tokens_total{{model=\"{name}\",kind=\"{kind}\"}} {tokens}");
        }
    }
    head(text, "cost_total", "Money, by currency.");
    for (name, meter) in meters {
        for cost in meter.costs.iter() {
            let (currency, amount) = (cost.currency, cost.amount());
            let _ = writeln!(text, "crawfish_model_cost_total{{model=\"{name}\",currency=\"{currency}\"}} {amount}");
        }
    }
}

async fn text(server: &Server) -> Result<String, crate::store::StoreError> {
    let http = &server.http;
    let now = http.clock.now_ms();
    let health = http.health.all();
    let mut text = String::new();
    for (name, kind, help, read) in FIGURES {
        let _ = writeln!(text, "# HELP crawfish_channel_{name} {help}\n# TYPE crawfish_channel_{name} {kind}");
        for (id, health) in &health {
            if let Some(value) = read(health, now) {
                // Ids are names of letters, digits, dots and dashes: nothing to escape.
                let _ = writeln!(text, "crawfish_channel_{name}{{channel=\"{id}\"}} {value}");
            }
        }
    }
    models(&mut text, &http.ledger.meters());
    let load = http.store.load().await?;
    let dead = http.store.dead_letters(None, DEAD_COUNTED).await?.len();
    let ready = http.ready.is_ready() && !http.stopping.is_cancelled();
    let whole = [
        ("ready", "1 when the gateway can do its work.", u64::from(ready)),
        ("queued_messages", "Messages that wait or are worked on.", load.queued),
        ("queued_bytes", "The same, in bytes.", load.bytes),
        ("dead_letters", "Messages that could not be processed; counted up to 1000.", dead as u64),
    ];
    for (name, help, value) in whole {
        let _ = writeln!(text, "# HELP crawfish_{name} {help}\n# TYPE crawfish_{name} gauge\ncrawfish_{name} {value}");
    }
    Ok(text)
}
