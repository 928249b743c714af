//! The plans of sessions: one row each.

use async_trait::async_trait;
use channel_api::{InboxId, TurnId};

use super::{
    SqliteStore, event, get, json, session, to_json,
    writer::{Tx, Write},
};
use crate::{
    plan::{Kept, Plan, PlanStore},
    session::SessionKey,
    store::{EventRow, Lease, StoreError},
};

#[async_trait]
impl PlanStore for SqliteStore {
    async fn put_plan(&self, lease: &Lease, plan: &Plan, now: i64) -> Result<Vec<EventRow>, StoreError> {
        self.write(PutPlan { lease: lease.clone(), plan: plan.clone(), now }).await
    }

    async fn plan(&self, session: &SessionKey) -> Result<Option<Kept>, StoreError> {
        let row = sqlx::query(
            "SELECT p.items, p.turn, p.updated_at FROM session s JOIN plan p ON p.session = s.id
             WHERE s.key = $1 AND p.generation = s.generation",
        )
        .bind(session.as_str())
        .fetch_optional(&self.readers)
        .await?;
        let kept = |row| {
            Ok(Kept {
                plan: Plan { items: json(&row, 0)? },
                turn: TurnId::from(get::<String>(&row, 1)?),
                updated_at: get(&row, 2)?,
            })
        };
        row.map(kept).transpose()
    }

    async fn open_plans(&self) -> Result<Vec<SessionKey>, StoreError> {
        let keys: Vec<String> = sqlx::query_scalar(
            "SELECT s.key FROM plan p INDEXED BY plan_open JOIN session s ON s.id = p.session
             WHERE p.open AND p.generation = s.generation",
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(keys.into_iter().map(SessionKey::from).collect())
    }
}

/// A plan that changed.
struct PutPlan {
    lease: Lease,
    plan: Plan,
    now: i64,
}

#[async_trait]
impl Write for PutPlan {
    type Answer = Vec<EventRow>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EventRow>, StoreError> {
        let id = session::fence(tx, &self.lease).await?;
        let row = sqlx::query(
            "SELECT s.id, s.generation, t.entry, p.items, p.turn FROM session s JOIN turn t ON t.id = s.lease_turn
             LEFT JOIN plan p ON p.session = s.id AND p.generation = s.generation
             WHERE s.id = $1",
        )
        .bind(id)
        .fetch_optional(&mut *tx.conn)
        .await?
        .ok_or(StoreError::Fenced)?;
        let (session, generation): (i64, i64) = (get(&row, 0)?, get(&row, 1)?);
        let task = InboxId::from(get::<String>(&row, 2)?);
        let items = to_json(&self.plan.items)?;
        if get::<Option<&str>>(&row, 3)? == Some(&*items)
            && get::<Option<&str>>(&row, 4)? == Some(self.lease.turn.as_str())
        {
            return Ok(Vec::new());
        }
        sqlx::query(
            "INSERT INTO plan (session, generation, turn, items, open, updated_at) VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (session) DO UPDATE SET generation = excluded.generation, turn = excluded.turn,
                 items = excluded.items, open = excluded.open, updated_at = excluded.updated_at",
        )
        .bind(session)
        .bind(generation)
        .bind(self.lease.turn.as_str())
        .bind(&items)
        .bind(self.plan.is_open())
        .bind(self.now)
        .execute(&mut *tx.conn)
        .await?;
        Ok(vec![event::insert(tx, &task, &self.lease.session, "plan", self.plan.for_event(), self.now).await?])
    }
}
