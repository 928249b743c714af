//! Files that came with messages: stored once by content under a quota, never under a name that someone sent.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use channel_api::{Media, MediaError, MediaRef, MediaSource, MediaStream};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

/// The largest file. security.md row 37: 20 MiB.
const LARGEST: u64 = 20 << 20;
/// The most bytes of all files together.
const QUOTA: u64 = 2 << 30;

/// The media folder, e.g. `data/media`.
pub struct MediaFolder {
    dir: PathBuf,
    used: OnceCell<AtomicU64>,
}

impl MediaFolder {
    /// The folder is made when the first file comes.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, used: OnceCell::new() }
    }

    async fn used(&self) -> &AtomicU64 {
        self.used
            .get_or_init(|| async {
                let mut total = 0;
                if let Ok(mut entries) = tokio::fs::read_dir(&self.dir).await {
                    while let Ok(Some(entry)) = entries.next_entry().await {
                        total += entry.metadata().await.map_or(0, |meta| meta.len());
                    }
                }
                AtomicU64::new(total)
            })
            .await
    }
}

#[async_trait]
impl Media for MediaFolder {
    async fn store(&self, bytes: Bytes, mime: Option<String>) -> Result<MediaRef, MediaError> {
        let size = bytes.len() as u64;
        if size > LARGEST {
            return Err(MediaError::TooLarge(LARGEST));
        }
        let name: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let place = self.dir.join(&name);
        let media = MediaRef { source: MediaSource::Stored(name), mime, size: Some(size) };
        if tokio::fs::try_exists(&place).await.unwrap_or(false) {
            return Ok(media);
        }
        let used = self.used().await;
        if used.fetch_add(size, Ordering::Relaxed) + size > QUOTA {
            used.fetch_sub(size, Ordering::Relaxed);
            return Err(MediaError::Full);
        }
        let dir = self.dir.clone();
        let written = tokio::task::spawn_blocking(move || {
            crate::os::create_private_dir(&dir)?;
            crate::os::write_private(&place, &bytes)
        })
        .await;
        match written {
            Ok(Ok(())) => Ok(media),
            Ok(Err(error)) => Err(MediaError::Io(error.to_string())),
            Err(error) => Err(MediaError::Io(error.to_string())),
        }
    }

    async fn keep(&self, mut bytes: MediaStream, mime: Option<String>) -> Result<MediaRef, MediaError> {
        let mut whole = Vec::new();
        while let Some(piece) = bytes.next().await {
            whole.extend_from_slice(&piece.map_err(MediaError::Unreachable)?);
            if whole.len() as u64 > LARGEST {
                return Err(MediaError::TooLarge(LARGEST));
            }
        }
        self.store(whole.into(), mime).await
    }

    async fn fetch(&self, _url: &str) -> Result<MediaRef, MediaError> {
        Err(MediaError::Refused("links are not fetched yet".to_owned()))
    }

    async fn read(&self, media: &MediaRef) -> Option<Bytes> {
        let MediaSource::Stored(name) = &media.source else { return None };
        let plain = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !plain {
            return None;
        }
        tokio::fs::read(self.dir.join(name)).await.ok().map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_kept_by_content_and_read_back() {
        let top = tempfile::tempdir().expect("a temporary folder");
        let media = MediaFolder::new(top.path().join("media"));
        let stored = media.store(Bytes::from_static(b"cat"), Some("image/png".into())).await.expect("it is stored");
        assert_eq!(stored.size, Some(3));
        assert_eq!(media.read(&stored).await.as_deref(), Some(&b"cat"[..]));
        let again = media.store(Bytes::from_static(b"cat"), None).await.expect("it is stored");
        assert_eq!(again.source, stored.source);
        let outside = MediaRef { source: MediaSource::Stored("../../etc/passwd".into()), mime: None, size: None };
        assert_eq!(media.read(&outside).await, None);
        let large = Bytes::from(vec![0; LARGEST as usize + 1]);
        assert!(matches!(media.store(large, None).await, Err(MediaError::TooLarge(_))));
    }
}
