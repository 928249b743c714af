//! What is refused before a byte leaves, and what ends a fetch that goes on. No test reaches beyond this machine.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

use super::*;
use crate::clock::SystemClock;

/// Answers names from a table; each name's answers in turn, the last one for ever.
#[derive(Default)]
pub(super) struct Table {
    answers: Vec<(&'static str, Vec<Vec<IpAddr>>)>,
    asked: Mutex<Vec<String>>,
}

impl Table {
    pub(super) fn of(answers: &[(&'static str, &[&[&str]])]) -> Arc<Self> {
        let ips = |ips: &&[&str]| ips.iter().map(|ip| ip.parse().expect("an address")).collect();
        let answers = answers.iter().map(|(name, turns)| (*name, turns.iter().map(ips).collect())).collect();
        Arc::new(Self { answers, asked: Mutex::default() })
    }

    fn asked(&self) -> usize {
        self.asked.lock().expect("no test panicked in it").len()
    }
}

#[async_trait]
impl Lookup for Table {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut asked = self.asked.lock().expect("no test panicked in it");
        let before = asked.iter().filter(|one| *one == name).count();
        asked.push(name.to_owned());
        let turns = self.answers.iter().find(|(known, _)| *known == name).map(|(_, turns)| turns);
        let turns = turns.ok_or_else(|| io::Error::other("no such name"))?;
        Ok(turns[before.min(turns.len() - 1)].clone())
    }
}

/// A server on loopback that counts connections and keeps what was asked.
pub(super) struct Site {
    pub(super) addr: SocketAddr,
    hits: Arc<AtomicUsize>,
    pub(super) heads: Arc<Mutex<Vec<String>>>,
    _serving: JoinSet<()>,
}

/// What it does after the request.
pub(super) enum Answer {
    /// Sends this and closes.
    Bytes(Vec<u8>),
    /// Sends this, then a byte now and then for ever.
    Drip(Vec<u8>),
}

pub(super) fn page(head: &str, body: &[u8]) -> Answer {
    let mut bytes = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{head}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    Answer::Bytes(bytes)
}

fn moved(to: &str) -> Answer {
    Answer::Bytes(
        format!("HTTP/1.1 302 Found\r\nset-cookie: a=b\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n").into(),
    )
}

impl Site {
    pub(super) async fn start(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let (hits, heads) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let mut serving = JoinSet::new();
        let (counted, kept) = (Arc::clone(&hits), Arc::clone(&heads));
        let answer = Arc::new(answer);
        serving.spawn(async move {
            let mut clients = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("it listens");
                counted.fetch_add(1, Ordering::SeqCst);
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                clients.spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => head.push(byte),
                            Err(_) => return,
                        }
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    kept.lock().expect("no test panicked in it").push(head);
                    match answer(&path) {
                        // A client that has enough hangs up.
                        Answer::Bytes(bytes) => drop(stream.write_all(&bytes).await),
                        Answer::Drip(bytes) => {
                            let _ = stream.write_all(&bytes).await;
                            let mut beat = tokio::time::interval(Duration::from_millis(5));
                            while stream.write_all(b"x").await.is_ok() {
                                beat.tick().await;
                            }
                        }
                    }
                });
            }
        });
        Self { addr, hits, heads, _serving: serving }
    }

    pub(super) fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }
}

/// A client that may reach these sites by their address.
fn egress(sites: &[&Site], lookup: Arc<Table>) -> Egress {
    let allow_hosts = sites.iter().map(|site| site.addr.to_string()).collect();
    client(EgressConfig { allow_hosts, ..EgressConfig::default() }, lookup)
}

fn client(config: EgressConfig, lookup: Arc<Table>) -> Egress {
    Egress::with_lookup(&config, |_| None, Arc::new(SystemClock::new()), lookup)
}

async fn fetch(egress: &Egress, url: &str) -> Result<Fetched, EgressError> {
    egress.fetch(url, Limits::default(), &CancellationToken::new()).await
}

#[tokio::test]
async fn row_16_every_notation_of_a_private_place_is_refused_before_a_connection() {
    let site = Site::start(|_| page("", b"inside")).await;
    let lookup = Table::of(&[]);
    let egress = client(EgressConfig::default(), Arc::clone(&lookup));
    let corpus = include_str!("../tests/corpus/ssrf.txt");
    let urls: Vec<&str> = corpus.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(urls.len() >= 60, "{}", urls.len());
    for url in urls {
        let url = url.replace("{port}", &site.addr.port().to_string());
        let refused = fetch(&egress, &url).await;
        assert!(matches!(refused, Err(EgressError::NotPublic | EgressError::Address(_))), "{url}: {refused:?}");
    }
    assert_eq!((site.hits(), lookup.asked()), (0, 0));
}

#[tokio::test]
async fn a_name_with_one_private_address_is_refused() {
    let site = Site::start(|_| page("", b"inside")).await;
    let lookup = Table::of(&[
        ("inside.example.org", &[&["127.0.0.1"]]),
        ("six.example.org", &[&["::1"]]),
        ("mapped.example.org", &[&["::ffff:127.0.0.1"]]),
        ("mixed.example.org", &[&["1.1.1.1", "127.0.0.1"]]),
        ("metadata.example.org", &[&["169.254.169.254"]]),
        ("empty.example.org", &[&[]]),
    ]);
    let egress = client(EgressConfig::default(), Arc::clone(&lookup));
    for name in ["inside", "six", "mapped", "mixed", "metadata"] {
        let refused = fetch(&egress, &format!("http://{name}.example.org:{}/", site.addr.port())).await;
        assert_eq!(refused.map(|got| got.status), Err(EgressError::NotPublic), "{name}");
    }
    for name in ["empty", "unknown"] {
        let refused = fetch(&egress, &format!("http://{name}.example.org/")).await;
        let host = format!("{name}.example.org");
        assert_eq!(refused.map(|got| got.status), Err(EgressError::NoSuchName(host)));
    }
    assert_eq!((site.hits(), lookup.asked()), (0, 7), "each name is looked up once");
}

#[tokio::test]
async fn row_16_a_name_that_changes_its_mind_is_checked_each_time_and_the_connection_goes_where_it_was_checked() {
    let lookup = Table::of(&[("rebind.example.org", &[&["1.2.3.4"], &["127.0.0.1"]])]);
    let guard = Guard { lookup, named: false, fake_ip: false, proxies: Vec::new() };
    let name = || "rebind.example.org".parse::<reqwest::dns::Name>().expect("a name");
    use reqwest::dns::Resolve as _;
    let first: Vec<SocketAddr> = guard.resolve(name()).await.map(Iterator::collect).expect("public");
    assert_eq!(first, [SocketAddr::from(([1, 2, 3, 4], 0))], "nothing but what was checked");
    let second = guard.resolve(name()).await.map(|_| ()).expect_err("private");
    assert_eq!(second.downcast_ref(), Some(&Unresolved::NotPublic));
}

#[tokio::test]
async fn made_up_addresses_of_a_local_proxy_are_taken_only_when_the_owner_says_so() {
    let lookup = || Table::of(&[("site.example.org", &[&["198.18.0.7"]]), ("in.example.org", &[&["10.0.0.1"]])]);
    let guard = |fake_ip| Guard { lookup: lookup(), named: false, fake_ip, proxies: vec!["proxy.corp".to_owned()] };
    assert_eq!(guard(false).checked("site.example.org").await, Err(Unresolved::NotPublic));
    assert!(guard(true).checked("site.example.org").await.is_ok());
    assert_eq!(guard(true).checked("in.example.org").await, Err(Unresolved::NotPublic));
    let egress = client(EgressConfig { fake_ip: true, ..EgressConfig::default() }, lookup());
    let refused = fetch(&egress, "http://198.18.0.7/").await;
    assert_eq!(refused.map(|got| got.status), Err(EgressError::NotPublic), "by name alone");
}

#[tokio::test]
async fn hosts_the_owner_named_are_reached_by_host_and_port_but_no_metadata() {
    let site = Site::start(|path| page("content-type: text/plain\r\n", path.as_bytes())).await;
    let other = Site::start(|_| page("", b"other")).await;
    let lookup = Table::of(&[("nas.local", &[&["127.0.0.1"]]), ("trap.example.org", &[&["169.254.169.254"]])]);
    let port = site.addr.port();
    let allow_hosts = vec![format!("nas.local:{port}"), format!("trap.example.org:{port}")];
    let egress = client(EgressConfig { allow_hosts, ..EgressConfig::default() }, lookup);
    let got = fetch(&egress, &format!("http://NAS.local:{port}/a?b=c#d")).await.expect("it is named");
    assert_eq!((got.status, got.body.as_slice(), got.cut), (200, b"/a?b=c".as_slice(), false));
    assert_eq!(got.content_type, "text/plain");
    for not in [
        format!("http://nas.local:{}/", other.addr.port()),
        site.url("/"),
        format!("http://trap.example.org:{port}/"),
        "http://nas.local/".to_owned(),
    ] {
        assert_eq!(fetch(&egress, &not).await.map(|got| got.status), Err(EgressError::NotPublic), "{not}");
    }
    assert_eq!((site.hits(), other.hits()), (1, 0));
}

#[tokio::test]
async fn row_16_redirects_are_followed_five_times_and_never_inside() {
    let inside = Site::start(|_| page("", b"inside")).await;
    let port = inside.addr.port();
    let site = Site::start(move |path| match path {
        "/private" => moved(&format!("http://127.0.0.1:{port}/")),
        "/hex" => moved(&format!("//0x7f.1:{port}/")),
        "/name" => moved(&format!("http://localhost:{port}/")),
        "/resolved" => moved(&format!("http://inside.example.org:{port}/")),
        "/metadata" => moved("http://169.254.169.254/latest/meta-data/"),
        "/file" => moved("file:///etc/passwd"),
        "/userinfo" => moved("http://a:b@example.org/"),
        "/odd" => moved("http://["),
        "/loop" => moved("/loop"),
        "/0" => page("", b"there"),
        number => match number[1..].parse::<u32>() {
            Ok(number) => moved(&format!("{}?from#x", number - 1)),
            Err(_) => page("", number.as_bytes()),
        },
    })
    .await;
    let lookup = Table::of(&[("inside.example.org", &[&["127.0.0.1"]])]);
    let egress = egress(&[&site], lookup);
    for path in ["/private", "/hex", "/name", "/resolved", "/metadata"] {
        let refused = fetch(&egress, &site.url(path)).await;
        assert_eq!(refused.map(|got| got.status), Err(EgressError::NotPublic), "{path}");
    }
    for path in ["/file", "/userinfo"] {
        let refused = fetch(&egress, &site.url(path)).await;
        assert!(matches!(refused, Err(EgressError::Address(_))), "{path}: {refused:?}");
    }
    for path in ["/odd", "/loop"] {
        let refused = fetch(&egress, &site.url(path)).await;
        assert!(matches!(refused, Err(EgressError::Redirect(_))), "{path}: {refused:?}");
    }
    assert_eq!(inside.hits(), 0);
    let before = site.hits();
    let got = fetch(&egress, &site.url("/1")).await.expect("one redirect");
    assert_eq!((got.url.as_str(), got.body.as_slice()), (site.url("/0?from").as_str(), b"/0?from".as_slice()));
    assert_eq!(site.hits() - before, 2);
    let heads = site.heads.lock().expect("no test panicked in it").join("").to_lowercase();
    for sent in ["cookie:", "referer:", "authorization:", "origin:"] {
        assert!(!heads.contains(sent), "{sent}");
    }
}

#[test]
fn a_redirect_may_become_secure_and_never_insecure() {
    let to = |from: &str, location: &str| {
        let headers = HeaderMap::from_iter([(LOCATION, location.parse().expect("a value"))]);
        redirect(StatusCode::FOUND, &headers, &Url::parse(from).expect("a URL")).map(|url| url.map(String::from))
    };
    assert_eq!(to("http://a.org/x", "https://a.org/y"), Ok(Some("https://a.org/y".to_owned())));
    assert_eq!(to("https://a.org/x/", "../y?z#w"), Ok(Some("https://a.org/y?z".to_owned())));
    assert!(matches!(to("https://a.org/", "http://a.org/"), Err(EgressError::Redirect(_))));
    assert!(matches!(to("https://a.org/", &"a".repeat(5_000)), Err(EgressError::Redirect(_))));
    let none = redirect(StatusCode::FOUND, &HeaderMap::new(), &Url::parse("http://a.org").expect("a URL"));
    assert_eq!(none, Ok(None));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    writer.write_all(bytes).and_then(|()| writer.finish()).expect("it compresses")
}

#[tokio::test]
async fn bodies_are_bounded_after_decompression() {
    const MIB: usize = 1 << 20;
    let bomb = gzip(&vec![0; 24 * MIB]);
    assert!(bomb.len() < MIB);
    let site = Site::start(move |path| match path {
        "/large" => page("content-type: text/plain\r\n", &vec![b'x'; 3 * MIB]),
        "/exact" => page("", &vec![b'x'; 2 * MIB]),
        "/gzip" => page("content-encoding: gzip\r\n", &gzip("你好".as_bytes())),
        "/bomb" => page("content-encoding: gzip\r\n", &bomb),
        "/lies" => page("content-encoding: gzip\r\n", b"this is no gzip at all, not even a bit"),
        "/twice" => page("content-encoding: gzip, gzip\r\n", &gzip(&gzip(b"x"))),
        "/brotli" => page("content-encoding: br\r\n", b"x"),
        "/short" => page("content-length: 100\r\n", b"only this"),
        "/long" => page(&format!("content-length: {}\r\n", 900 * MIB), &vec![b'x'; 3 * MIB]),
        "/404" => Answer::Bytes(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\nno".to_vec()),
        "/junk" => Answer::Bytes(b"\0\x01\x02 SSH-2.0\r\n\r\n".to_vec()),
        "/headers" => page(&"x: y\r\n".repeat(100_000), b"x"),
        _ => Answer::Bytes(Vec::new()),
    })
    .await;
    let egress = egress(&[&site], Table::of(&[]));
    for (path, length, cut) in [
        ("/large", 2 * MIB, true),
        ("/exact", 2 * MIB, false),
        ("/bomb", 2 * MIB, true),
        ("/gzip", 6, false),
        ("/404", 2, false),
    ] {
        let got = fetch(&egress, &site.url(path)).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!((got.body.len(), got.cut), (length, cut), "{path}");
    }
    let long = fetch(&egress, &site.url("/long")).await.expect("its beginning");
    assert_eq!((long.cut, long.length), (true, Some(900 * MIB as u64)));
    assert_eq!(fetch(&egress, &site.url("/404")).await.map(|got| got.status), Ok(404));
    for path in ["/brotli", "/twice"] {
        assert_eq!(
            fetch(&egress, &site.url(path)).await.map(|got| got.status),
            Err(EgressError::Encoding("127.0.0.1".into()))
        );
    }
    for path in ["/lies", "/short", "/junk", "/headers", "/nothing"] {
        let broken = fetch(&egress, &site.url(path)).await;
        assert_eq!(broken.map(|got| got.status), Err(EgressError::Broken("127.0.0.1".into())), "{path}");
    }
}

#[tokio::test]
async fn a_drip_ends_at_the_total_a_stop_at_once_and_a_closed_port_is_told() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n";
    let site = Site::start(|path| match path {
        "/body" => Answer::Drip(head.to_vec()),
        "/head" => Answer::Drip(b"HTTP/1.1 200 OK\r\nx-long: ".to_vec()),
        _ => Answer::Drip(Vec::new()),
    })
    .await;
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        listener.local_addr().expect("it is bound")
    };
    let rude = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let rude_addr = rude.local_addr().expect("it is bound");
    let allow_hosts = vec![site.addr.to_string(), gone.to_string(), rude_addr.to_string()];
    let egress = client(EgressConfig { allow_hosts, ..EgressConfig::default() }, Table::of(&[]));
    let limits = Limits { total: Duration::from_millis(200), ..Limits::default() };
    for path in ["/body", "/head"] {
        let late = egress.fetch(&site.url(path), limits, &CancellationToken::new()).await;
        assert_eq!(late.map(|got| got.status), Err(EgressError::TimedOut("127.0.0.1".into(), 1)), "{path}");
    }
    let cancel = CancellationToken::new();
    let url = site.url("/body");
    let (stopped, ()) = tokio::join!(egress.fetch(&url, Limits::default(), &cancel), async {
        while site.hits() < 3 {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    });
    assert_eq!(stopped.map(|got| got.status), Err(EgressError::Cancelled));
    let closed = fetch(&egress, &format!("http://{gone}/")).await;
    assert_eq!(closed.map(|got| got.status), Err(EgressError::Unreachable("127.0.0.1".into())));
    // Plain HTTP where TLS is expected.
    let url = format!("https://{rude_addr}/");
    let plain = fetch(&egress, &url);
    let (plain, ()) = tokio::join!(plain, async {
        let (mut stream, _) = rude.accept().await.expect("it listens");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("it is written");
    });
    assert_eq!(plain.map(|got| got.status), Err(EgressError::Insecure("127.0.0.1".into())));
}

#[tokio::test]
async fn a_proxy_gets_what_is_public_and_never_a_private_name() {
    let proxy = Site::start(|path| page("", path.as_bytes())).await;
    let lookup = Table::of(&[]);
    let config = EgressConfig { proxy: Proxy::Url(proxy.url("")), ..EgressConfig::default() };
    let egress = client(config, Arc::clone(&lookup));
    let got = fetch(&egress, "http://example.org/a").await.expect("by way of the proxy");
    assert_eq!(got.body, b"http://example.org/a");
    for private in ["http://printer.local/", "http://127.0.0.1/", "http://intranet/", &proxy.url("/")] {
        assert_eq!(fetch(&egress, private).await.map(|got| got.status), Err(EgressError::NotPublic), "{private}");
    }
    assert_eq!((proxy.hits(), lookup.asked()), (1, 0), "the proxy resolves");
    // The environment's proxy counts only when it is asked for.
    let env = |name: &str| (name == "HTTP_PROXY").then(|| proxy.url(""));
    let clock = || Arc::new(SystemClock::new());
    let lookup = Table::of(&[("example.org", &[&["127.0.0.1"]])]);
    let without = Egress::with_lookup(&EgressConfig::default(), env, clock(), Arc::clone(&lookup) as Arc<dyn Lookup>);
    assert_eq!(fetch(&without, "http://example.org/").await.map(|got| got.status), Err(EgressError::NotPublic));
    let config = EgressConfig { proxy: Proxy::Env, ..EgressConfig::default() };
    let with = Egress::with_lookup(&config, env, clock(), lookup);
    assert!(fetch(&with, "http://example.org/b").await.is_ok());
    assert_eq!(proxy.hits(), 2);
}
