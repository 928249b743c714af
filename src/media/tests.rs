//! What is kept and what is refused, what a crash leaves, what goes and when, and which links are never asked for.

use std::{
    fs as disk,
    sync::atomic::{AtomicBool, AtomicUsize},
};

use channel_api::contract::FakeClock;
use tokio::{io::AsyncWriteExt as _, net::TcpListener, sync::oneshot, task::JoinSet};

use super::*;
use crate::{clock::SystemClock, egress::EgressConfig};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

struct House {
    top: tempfile::TempDir,
    clock: Arc<FakeClock>,
    config: MediaConfig,
}

impl House {
    fn new() -> Self {
        let now = SystemClock::new().now_ms();
        Self {
            top: tempfile::tempdir().expect("a folder"),
            clock: Arc::new(FakeClock::at(now)),
            config: MediaConfig::default(),
        }
    }

    fn dir(&self) -> PathBuf {
        self.top.path().join("media")
    }

    fn open(&self) -> MediaFolder {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let egress = Egress::new(&self.config.egress(&EgressConfig::default()), |_| None, Arc::clone(&clock));
        MediaFolder::new(self.dir(), self.config.clone(), egress, clock)
    }

    /// The names in the folder, sorted.
    fn names(&self) -> Vec<String> {
        names_in(&self.dir())
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = disk::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn stream(pieces: impl IntoIterator<Item = Result<Bytes, String>, IntoIter: Send + 'static>) -> MediaStream {
    futures_util::stream::iter(pieces).boxed()
}

fn name(media: &MediaRef) -> &str {
    match &media.source {
        MediaSource::Stored(name) => name,
        MediaSource::Url(url) => panic!("not stored: {url}"),
    }
}

#[tokio::test]
async fn a_file_is_kept_once_by_content_and_read_back() {
    let house = House::new();
    let media = house.open();
    let pieces = [Bytes::from_static(b"\x89PNG\r\n"), Bytes::from_static(b"\x1a\n\0\0\0\rIHDR")];
    let kept = media.keep(stream(pieces.map(Ok)), Some("text/html".to_owned())).await.expect("kept");
    assert_eq!((kept.mime.as_deref(), kept.size), (Some("image/png"), Some(16)), "its bytes tell, not its sender");
    let whole = Bytes::from_static(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    assert_eq!(media.store(whole.clone(), None).await.expect("kept"), kept, "the same bytes are one file");
    assert_eq!(media.read(&kept).await, Some(whole));
    assert_eq!(house.names(), [name(&kept)]);
    assert_eq!(media.used().await.load(Ordering::Relaxed), 16, "counted once");
    for wrong in ["../../etc/passwd", "", "AAAA", &"z".repeat(64), &"a".repeat(64)] {
        let outside = MediaRef { source: MediaSource::Stored(wrong.to_owned()), mime: None, size: None };
        assert_eq!(media.read(&outside).await, None, "{wrong}");
        assert_eq!(media.show(&SessionKey::web("main", None), &outside, None).await, None, "{wrong}");
    }
}

#[tokio::test]
async fn a_text_with_a_secret_in_it_is_not_taken_in_to_be_sent() {
    let house = House::new();
    let (media, redactor) = (house.open(), Redactor::new([&crate::secrets::Secret::new("sk-canary-7f3a9c1e5b2d")]));
    for (text, sent) in
        [("a note", true), ("key=sk-canary-7f3a9c1e5b2d", false), ("c2stY2FuYXJ5LTdmM2E5YzFlNWIyZA==", false)]
    {
        let path = house.top.path().join("note.txt");
        disk::write(&path, text).expect("it can be written");
        let file = disk::File::open(&path).expect("it can be read");
        assert_eq!(media.take_in_to_send(file, &redactor).await.is_ok(), sent, "{text}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_gateway_may_read_what_is_kept() {
    use std::os::unix::fs::PermissionsExt;
    let house = House::new();
    let media = house.open();
    let kept = media.store(Bytes::from_static(b"secret"), None).await.expect("kept");
    let shown = media.show(&SessionKey::web("main", None), &kept, None).await.expect("shown");
    let copy = media.shown(&SessionKey::web("main", None)).join(shown.trim_start_matches("media/"));
    for path in [house.dir().join(name(&kept)), copy] {
        assert_eq!(disk::metadata(path).expect("there").permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(disk::metadata(house.dir()).expect("there").permissions().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn what_is_too_large_breaks_off_or_finds_no_room_leaves_nothing() {
    let mut house = House::new();
    house.config.largest = ByteSize(100);
    house.config.quota = ByteSize(150);
    let media = house.open();
    let bytes = |n: usize, byte: u8| Ok(Bytes::from(vec![byte; n]));
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let endless = std::iter::repeat_with(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        bytes(30, b'x')
    });
    assert!(matches!(media.keep(stream(endless), None).await, Err(MediaError::TooLarge(100))));
    assert_eq!(taken.load(Ordering::Relaxed), 4, "nothing is read beyond the limit");
    let broken = [bytes(30, b'x'), Err("the line went dead".to_owned())];
    let error = media.keep(stream(broken), None).await.expect_err("broken");
    assert!(matches!(&error, MediaError::Unreachable(why) if why == "the line went dead"), "{error:?}");
    assert_eq!(house.names(), Vec::<String>::new());
    media.store(Bytes::from(vec![b'a'; 100]), None).await.expect("within both limits");
    assert!(matches!(media.keep(stream([bytes(60, b'b')]), None).await, Err(MediaError::Full)));
    assert_eq!(house.names().len(), 1);
    media.store(Bytes::from(vec![b'c'; 50]), None).await.expect("what was refused was given back");
    assert!(matches!(media.store(Bytes::from_static(b"d"), None).await, Err(MediaError::Full)));
}

#[tokio::test]
async fn when_it_is_crowded_the_oldest_that_nothing_needs_go_first() {
    let mut house = House::new();
    house.config.quota = ByteSize(1_000);
    let media = house.open();
    let mut kept = Vec::new();
    for byte in b'a'..b'j' {
        kept.push(media.store(Bytes::from(vec![byte; 100]), None).await.expect("kept"));
        house.clock.advance(Duration::from_secs(1));
        media.store(Bytes::from(vec![byte; 100]), None).await.expect("its time is the clock's");
    }
    assert!(media.is_crowded().await);
    let in_use: HashSet<String> = [name(&kept[0]).to_owned(), name(&kept[2]).to_owned()].into();
    assert_eq!(media.sweep(in_use.clone()).await, Swept::default(), "turns may still need them all");
    house.clock.advance(SPARED);
    assert_eq!(media.sweep(in_use.clone()).await, Swept { files: 2, more: false }, "until a quarter is free");
    let mut left = Vec::new();
    for file in &kept {
        left.push(media.holds(file).await);
    }
    assert_eq!(left, [true, false, true, false, true, true, true, true, true]);
    assert!(!media.is_crowded().await);
    // Age alone does not outweigh what waits.
    house.clock.advance(DAY * 15);
    assert_eq!(media.sweep(in_use).await, Swept { files: 5, more: false });
    assert!(media.holds(&kept[0]).await && media.holds(&kept[2]).await);
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_nothing_and_a_crash_leaves_what_the_next_start_sweeps() {
    let house = House::new();
    let media = house.open();
    let (begun, began) = oneshot::channel();
    let (mut begun, dir) = (Some(begun), house.dir());
    let stalls = futures_util::stream::poll_fn(move |_| {
        let there = names_in(&dir);
        begun.take().map(|begun| begun.send(there));
        std::task::Poll::Pending
    });
    let slow = futures_util::stream::iter([Ok(Bytes::from_static(b"half"))]).chain(stalls);
    let there = tokio::select! {
        kept = media.keep(slow.boxed(), None) => panic!("{kept:?}"),
        there = began => there.expect("it began"),
    };
    assert!(there.len() == 1 && there[0].starts_with("tmp-"), "{there:?}");
    assert_eq!(house.names(), Vec::<String>::new());
    assert_eq!(media.used().await.load(Ordering::Relaxed), 0);

    let kept = media.store(Bytes::from_static(b"whole"), None).await.expect("kept");
    disk::write(house.dir().join("tmp-01H"), b"half").expect("written");
    disk::write(house.dir().join("README"), b"not ours").expect("written");
    let media = house.open();
    assert_eq!(media.used().await.load(Ordering::Relaxed), 5, "half a file is no file");
    let mut left = ["README".to_owned(), name(&kept).to_owned()];
    left.sort();
    assert_eq!(house.names(), left);
}

#[tokio::test]
async fn files_go_with_age_and_what_came_again_stays() {
    let house = House::new();
    let media = house.open();
    let session = SessionKey::web("main", None);
    let old = media.store(Bytes::from_static(b"old"), None).await.expect("kept");
    let again = media.store(Bytes::from_static(b"again"), None).await.expect("kept");
    media.show(&session, &old, None).await.expect("shown");
    disk::write(house.dir().join("README"), b"not ours").expect("written");
    house.clock.advance(Duration::from_millis((13 * DAY_MS) as u64));
    assert_eq!(media.sweep(HashSet::new()).await, Swept::default());
    media.store(Bytes::from_static(b"again"), None).await.expect("kept");
    house.clock.advance(Duration::from_millis((2 * DAY_MS) as u64));
    assert_eq!(media.sweep(HashSet::new()).await, Swept { files: 2, more: false }, "the old one and its copy");
    assert!(!media.holds(&old).await && media.holds(&again).await);
    assert!(!media.shown(&session).exists(), "the empty folder went too");
    assert!(house.dir().join("README").exists());
    assert_eq!(media.used().await.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn a_session_reads_its_own_files_and_a_changed_copy_changes_nothing() {
    let house = House::new();
    let media = house.open();
    let (one, other) = (SessionKey::web("main", None), SessionKey::web("main", Some("other")));
    let kept = media.store(Bytes::from_static(b"a,b\n"), Some("text/csv".to_owned())).await.expect("kept");
    let shown = media.show(&one, &kept, Some("../list.CSV")).await.expect("shown");
    assert_eq!(shown, format!("media/{}.csv", &name(&kept)[..16]));
    assert_eq!(media.show(&one, &kept, Some("../list.CSV")).await.as_ref(), Some(&shown), "the same each time");
    let copy = media.shown(&one).join(shown.trim_start_matches("media/"));
    assert!(media.shown(&one).ends_with("media") && !media.shown(&other).exists());
    disk::write(&copy, b"changed").expect("written");
    assert_eq!(media.read(&kept).await.as_deref(), Some(&b"a,b\n"[..]));
    for odd in ["x.a/b", "x.", "x", "x.ending-too-long", "x.\u{202e}gpj"] {
        let shown = media.show(&other, &kept, Some(odd)).await.expect("shown");
        assert_eq!(shown, format!("media/{}", &name(&kept)[..16]), "{odd:?}");
    }
}

/// Answers each connection with these bytes and says whether one came.
#[tokio::test]
async fn what_was_heard_is_kept_as_long_as_its_recording() {
    let house = House::new();
    let media = house.open();
    let recording = media.store(Bytes::from_static(b"OggS"), None).await.expect("kept");
    assert_eq!(media.heard(&recording).await, None);
    media.keep_heard(&recording, "你好").await;
    let again = house.open();
    assert_eq!(again.heard(&recording).await.as_deref(), Some("你好"));
    let link = MediaRef { source: MediaSource::Url("https://e.test/a.ogg".to_owned()), mime: None, size: None };
    again.keep_heard(&link, "x").await;
    assert_eq!(again.heard(&link).await, None, "what is not kept is not heard");
    house.clock.advance(DAY * 15);
    let needed = HashSet::from([name(&recording).to_owned()]);
    assert_eq!(again.sweep(needed).await.files, 0);
    assert_eq!(again.sweep(HashSet::new()).await.files, 2);
    assert_eq!((again.heard(&recording).await, again.holds(&recording).await), (None, false));
}

async fn site(answer: Vec<u8>) -> (String, Arc<AtomicBool>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("bound").to_string();
    let (hit, mut serving) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    let seen = Arc::clone(&hit);
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            seen.store(true, Ordering::SeqCst);
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => break,
                }
            }
            // Who has enough hangs up.
            let _ = stream.write_all(&answer).await;
        }
    });
    (addr, hit, serving)
}

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n").as_bytes(), body].concat()
}

#[tokio::test]
async fn bad_input_39_what_is_no_public_address_is_not_fetched() {
    let (addr, hit, _serving) = site(answer("200 OK", b"secret")).await;
    let house = House::new();
    let media = house.open();
    for url in [
        "file:///etc/passwd".to_owned(),
        "http://10.0.0.1/a.png".to_owned(),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "ftp://e.test/a.png".to_owned(),
        "data:image/png;base64,AAAA".to_owned(),
        "no address".to_owned(),
        format!("http://{addr}/a.png"),
        format!("http://localhost:{}/a.png", addr.rsplit(':').next().expect("a port")),
    ] {
        let error = media.fetch(&url).await.expect_err(&url);
        assert!(matches!(error, MediaError::Refused(_)), "{url}: {error:?}");
    }
    assert!(!hit.load(Ordering::SeqCst), "not one connection");
    assert_eq!(house.names(), Vec::<String>::new());
}

#[tokio::test]
async fn links_are_fetched_within_the_limits_and_what_fails_says_whether_to_try_again() {
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    let (good, _, _a) = site(answer("200 OK\r\ncontent-type: text/html", png)).await;
    let (gone, _, _b) = site(answer("404 Not Found", b"no")).await;
    let (down, _, _c) = site(answer("503 Busy", b"no")).await;
    let (large, _, _d) = site(answer("200 OK\r\ncontent-length: 3000000000", b"x")).await;
    let (endless, _, _e) = site(answer("200 OK", &vec![b'x'; 300_000])).await;
    let (cut, _, _f) = site(answer("200 OK\r\ncontent-length: 100", b"x")).await;
    let (within, _, _g) = site(answer("302 Found\r\nlocation: http://10.0.0.1/", b"")).await;
    let mut house = House::new();
    house.config.largest = ByteSize(100_000);
    house.config.allow_hosts = [&good, &gone, &down, &large, &endless, &cut, &within].map(Clone::clone).to_vec();
    let media = house.open();
    let url = |addr: &str| format!("http://{addr}/file");
    let kept = media.fetch(&url(&good)).await.expect("kept");
    assert_eq!((kept.mime.as_deref(), kept.size), (Some("image/png"), Some(16)));
    for (addr, what) in [(&gone, "refused"), (&within, "refused"), (&down, "again"), (&cut, "again")] {
        let error = media.fetch(&url(addr)).await.expect_err(what);
        let found = match &error {
            MediaError::Refused(_) => "refused",
            MediaError::Unreachable(_) => "again",
            _ => "else",
        };
        assert_eq!(found, what, "{error:?}");
    }
    for addr in [&large, &endless] {
        assert!(matches!(media.fetch(&url(addr)).await, Err(MediaError::TooLarge(100_000))));
    }
    assert_eq!(house.names(), [name(&kept)]);
}
