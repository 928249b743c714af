//! Messages that were changed or deleted after they were sent: what still waits follows, what runs or was answered does not.

use channel_api::{Inbound, InboxId};

use super::{event, get, group, inbox::sender_key, json, session, to_json, writer::Tx};
use crate::{
    session::SessionKey,
    store::{Amended, Amendment, Change, StoreError},
};

/// A message as the store has it.
struct Stored {
    seq: i64,
    id: InboxId,
    session: i64,
    key: SessionKey,
    waits: bool,
    /// A turn works on it, or did.
    worked_on: bool,
    bytes: i64,
    inbound: Inbound,
}

/// Does what an event says about an earlier message, once: its key stays where those of heard messages are.
pub(super) async fn amend(tx: &mut Tx<'_>, new: &Amendment) -> Result<Amended, StoreError> {
    let Some(event) = group::once(tx, &new.event).await? else { return Ok(Amended::Nothing) };
    let row = sqlx::query(
        "SELECT i.seq, i.id, i.session, s.key, i.state = 0 AND i.turn IS NULL, i.turn IS NOT NULL, i.bytes, i.payload,
                i.sender
         FROM inbox i JOIN session s ON s.id = i.session WHERE i.channel = $1 AND i.platform_id = $2",
    )
    .bind(new.event.channel.as_str())
    .bind(&new.about)
    .fetch_optional(&mut *tx.conn)
    .await?;
    let Some(row) = row else { return heard(tx, new).await };
    let key = SessionKey::from(get::<String>(&row, 3)?);
    let theirs = match &new.sender {
        Some(sender) => get::<&str>(&row, 8)? == sender_key(&new.event.channel, sender),
        None => key == new.event.session,
    };
    if !theirs {
        return Ok(Amended::Nothing);
    }
    let stored = Stored {
        seq: get(&row, 0)?,
        id: InboxId::from(get::<String>(&row, 1)?),
        session: get(&row, 2)?,
        key,
        waits: get(&row, 4)?,
        worked_on: get(&row, 5)?,
        bytes: get(&row, 6)?,
        inbound: json(&row, 7)?,
    };
    match &new.change {
        Change::Edit { text, attachments, note } => {
            if stored.inbound.text == *text && attachments.is_empty() {
                return Ok(Amended::Nothing);
            }
            if stored.waits {
                return replace(tx, stored, text, attachments).await;
            }
            if let (Some(note), true) = (note, stored.worked_on) {
                group::tell(tx, event, &new.event, note).await?;
            }
            Ok(Amended::Nothing)
        }
        Change::Delete if stored.waits => remove(tx, &stored, new.event.at).await,
        Change::Delete => Ok(Amended::Nothing),
    }
}

async fn replace(
    tx: &mut Tx<'_>,
    mut stored: Stored,
    text: &str,
    attachments: &[channel_api::Attachment],
) -> Result<Amended, StoreError> {
    text.clone_into(&mut stored.inbound.text);
    if !attachments.is_empty() {
        stored.inbound.attachments = attachments.to_vec();
    }
    let payload = to_json(&stored.inbound)?;
    let bytes = i64::try_from(payload.len()).unwrap_or(i64::MAX);
    sqlx::query("UPDATE inbox SET payload = $2, bytes = $3 WHERE seq = $1")
        .bind(stored.seq)
        .bind(payload)
        .bind(bytes)
        .execute(&mut *tx.conn)
        .await?;
    tx.load.remove(stored.bytes);
    tx.load.add(bytes);
    Ok(Amended::Replaced(stored.id))
}

async fn remove(tx: &mut Tx<'_>, stored: &Stored, now: i64) -> Result<Amended, StoreError> {
    sqlx::query("UPDATE inbox SET state = 2, silent = 'deleted', settled_at = $2, suspect = 0 WHERE seq = $1")
        .bind(stored.seq)
        .bind(now)
        .execute(&mut *tx.conn)
        .await?;
    tx.load.remove(stored.bytes);
    session::recount(tx, stored.session).await?;
    let told = event::completed(tx, &stored.key, &stored.id, &[], Some("deleted"), now).await?;
    Ok(Amended::Removed(told))
}

/// What was said in a group and not to the bot follows as long as no turn was told of it.
async fn heard(tx: &mut Tx<'_>, new: &Amendment) -> Result<Amended, StoreError> {
    let text = match &new.change {
        Change::Edit { .. } => Some(new.event.text.as_str()),
        Change::Delete => None,
    };
    sqlx::query(
        "UPDATE heard SET text = $1, name = CASE WHEN $1 IS NOT NULL THEN name END,
                          sender = CASE WHEN $1 IS NULL THEN '' ELSE sender END
         WHERE channel = $2 AND platform_id = $3 AND session = $4 AND ($5 IS NULL OR sender = $5)
           AND text IS NOT NULL AND turn IS NULL",
    )
    .bind(text)
    .bind(new.event.channel.as_str())
    .bind(&new.about)
    .bind(new.event.session.as_str())
    .bind(&new.sender)
    .execute(&mut *tx.conn)
    .await?;
    Ok(Amended::Nothing)
}
