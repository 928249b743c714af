//! What models cost: one row a call, and sums of them.

use async_trait::async_trait;
use channel_api::TurnId;
use sqlx::{AssertSqlSafe, Row as _, sqlite::SqliteRow};

use super::{
    SqliteStore, count, get, tokens,
    writer::{Tx, Write},
};
use crate::{
    ledger::money::{Cost, Currency},
    model::Usage,
    session::SessionKey,
    store::{DaySpent, LedgerStore, NewSpend, Spent, SpentAsk, SpentBy, SpentOf, SpentRow, StoreError},
};

/// Tokens of a row in a sum: old rows hold what a provider claimed, and what cannot be is not summed.
macro_rules! believed {
    ($column:literal) => {
        concat!("min(p.", $column, ", 1000000000)")
    };
}

#[async_trait]
impl LedgerStore for SqliteStore {
    async fn spend(&self, spend: NewSpend) -> Result<(), StoreError> {
        self.write(spend).await
    }

    async fn spent_on(&self, day: &str) -> Result<Vec<DaySpent>, StoreError> {
        let rows = sqlx::query(concat!(
            "SELECT s.key, p.sender, sum(",
            believed!("tokens_in"),
            " + ",
            believed!("tokens_out"),
            "), p.currency, sum(p.nano / 1000000000), sum(p.nano % 1000000000)
             FROM spend p LEFT JOIN session s ON s.id = p.session
             WHERE p.day = $1 GROUP BY p.session, p.sender, p.currency",
        ))
        .bind(day)
        .fetch_all(&self.readers)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(DaySpent {
                    session: get::<Option<String>>(row, 0)?.map(SessionKey::from),
                    sender: get(row, 1)?,
                    tokens: count(row, 2)?,
                    cost: sum_of_costs(row, 3)?,
                })
            })
            .collect()
    }

    async fn spent(&self, ask: &SpentAsk) -> Result<Vec<SpentRow>, StoreError> {
        let key = match ask.by {
            SpentBy::Total => "''",
            SpentBy::Day => "p.day",
            SpentBy::Model => "p.model",
            SpentBy::Sender => "p.sender",
            SpentBy::Session => "coalesce((SELECT key FROM session WHERE id = p.session), '')",
            SpentBy::Agent => "p.agent",
            SpentBy::Purpose => "p.purpose",
        };
        let (of, value) = match &ask.of {
            SpentOf::All => ("$3 IS NULL", None),
            SpentOf::Session(key) => ("p.session = (SELECT id FROM session WHERE key = $3)", Some(key.as_str())),
            SpentOf::LastTurn(key) => (
                "p.turn = (SELECT turn FROM spend WHERE session = (SELECT id FROM session WHERE key = $3)
                             AND turn IS NOT NULL ORDER BY seq DESC LIMIT 1)",
                Some(key.as_str()),
            ),
            SpentOf::Sender(sender) => ("p.sender = $3", Some(sender.as_str())),
        };
        // By the day it is the days that are listed, else what took the most.
        let order = if ask.by == SpentBy::Day { "key DESC" } else { "sum(tokens_in + tokens_out) DESC, key" };
        let [input, output, cached, written] = [
            believed!("tokens_in"),
            believed!("tokens_out"),
            believed!("tokens_cached"),
            believed!("tokens_cache_write"),
        ];
        let sql = format!(
            "WITH wanted AS MATERIALIZED (SELECT {key} AS key, {input} AS tokens_in, {output} AS tokens_out,
                                   {cached} AS tokens_cached, {written} AS tokens_cache_write, p.estimated, p.currency,
                                   p.nano
                            FROM spend p WHERE p.day >= $1 AND p.day <= $2 AND {of}),
                  shown AS (SELECT key, row_number() OVER (ORDER BY {order}) AS place
                            FROM wanted GROUP BY key ORDER BY place LIMIT $4 + 0)
             SELECT w.key, count(*), sum(w.tokens_in), sum(w.tokens_out), sum(w.tokens_cached),
                    sum(w.tokens_cache_write), max(w.estimated), w.currency, sum(w.nano / 1000000000),
                    sum(w.nano % 1000000000)
             FROM shown JOIN wanted w ON w.key = shown.key
             GROUP BY shown.place, w.key, w.currency ORDER BY shown.place, w.currency"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(ask.since.as_deref().unwrap_or(""))
            .bind(ask.until.as_deref().unwrap_or("9999"))
            .bind(value)
            .bind(i64::from(ask.limit))
            .fetch_all(&self.readers)
            .await?;
        let mut all: Vec<SpentRow> = Vec::new();
        for row in &rows {
            let key: String = get(row, 0)?;
            if all.last().is_none_or(|last| last.key != key) {
                all.push(SpentRow { key, ..SpentRow::default() });
            }
            let Some(sum) = all.last_mut() else { continue };
            sum.calls = sum.calls.saturating_add(count(row, 1)?);
            sum.usage.add(&Usage {
                input: count(row, 2)?,
                output: count(row, 3)?,
                cached: count(row, 4)?,
                cache_write: count(row, 5)?,
                estimated: get(row, 6)?,
            });
            sum_of_costs(row, 7)?.into_iter().for_each(|cost| sum.costs.add(cost));
        }
        Ok(all)
    }
}

/// Reads `currency, units, nano` from column `i` on: a sum in two parts, since one of billionths alone would overflow.
fn sum_of_costs(row: &SqliteRow, i: usize) -> Result<Option<Cost>, StoreError> {
    const UNIT: i64 = 1_000_000_000;
    let Some(currency) = get::<Option<&str>>(row, i)?.and_then(Currency::parse) else { return Ok(None) };
    let (units, rest): (i64, i64) = (get(row, i + 1)?, get(row, i + 2)?);
    Ok(Some(Cost { currency, nano: units.saturating_mul(UNIT).saturating_add(rest) }))
}

/// Reads `currency, nano` from column `i` on.
fn cost(row: &SqliteRow, i: usize) -> Result<Option<Cost>, StoreError> {
    let currency = get::<Option<&str>>(row, i)?.and_then(Currency::parse);
    Ok(match currency {
        Some(currency) => Some(Cost { currency, nano: get(row, i + 1)? }),
        None => None,
    })
}

/// What a step's row in the ledger adds to the step: the columns of [`spent`], in its order.
macro_rules! spent_columns {
    () => {
        "p.agent, p.sender, p.model, p.purpose, p.day, p.currency, p.nano, p.tokens_cache_write"
    };
}
pub(super) use spent_columns;

/// Reads `spent_columns!` from column `i` on: what was spent, and the tokens written to a cache.
pub(super) fn spent(row: &SqliteRow, i: usize) -> Result<Option<(Spent, u64)>, StoreError> {
    let Some(agent) = row.try_get::<Option<String>, _>(i)? else { return Ok(None) };
    let spent = Spent {
        agent,
        sender: get(row, i + 1)?,
        model: get(row, i + 2)?,
        purpose: get(row, i + 3)?,
        day: get(row, i + 4)?,
        cost: cost(row, i + 5)?,
    };
    Ok(Some((spent, count(row, i + 7)?)))
}

/// Writes one row; a step's only once, however often the step is written.
pub(super) async fn insert(
    tx: &mut Tx<'_>,
    id: &str,
    turn: Option<&TurnId>,
    session: Option<&SessionKey>,
    spent: &Spent,
    usage: &Usage,
    at: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO spend (turn, id, session, agent, sender, model, purpose, day, at,
                            tokens_in, tokens_out, tokens_cached, tokens_cache_write, estimated, currency, nano)
         VALUES ($1, $2, coalesce((SELECT session FROM turn WHERE id = $1), (SELECT id FROM session WHERE key = $3)),
                 $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
         ON CONFLICT (turn, id) DO NOTHING",
    )
    .bind(turn.map(TurnId::as_str))
    .bind(id)
    .bind(session.map(SessionKey::as_str))
    .bind(&spent.agent)
    .bind(&spent.sender)
    .bind(&spent.model)
    .bind(&spent.purpose)
    .bind(&spent.day)
    .bind(at)
    .bind(tokens(usage.input))
    .bind(tokens(usage.output))
    .bind(tokens(usage.cached))
    .bind(tokens(usage.cache_write))
    .bind(usage.estimated)
    .bind(spent.cost.map(|cost| cost.currency.to_string()))
    .bind(spent.cost.map_or(0, |cost| cost.nano))
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

#[async_trait]
impl Write for NewSpend {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let (turn, session) = (self.turn.as_ref(), self.session.as_ref());
        insert(tx, &self.id, turn, session, &self.spent, &self.usage, self.at).await
    }
}
