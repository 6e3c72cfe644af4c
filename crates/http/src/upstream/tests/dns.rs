//! Names that are asked of DNS servers, by a server of the test's own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;

use hickory_resolver::proto::op::{Message, MessageType, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;

use super::hosts::{answered_by, build, named, tally};
use super::*;

/// What the server knows: the data of records, and how long they hold, in seconds.
type Records = HashMap<(String, RecordType), (Vec<RData>, u32)>;

/// In place of how long a record holds: the server fails when it is asked for it.
const FAILS: u32 = u32::MAX;

/// A DNS server that counts the questions it gets.
struct NameServer {
    address: SocketAddr,
    records: Arc<Mutex<Records>>,
    asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl NameServer {
    async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (records, asked) = (Arc::<Mutex<Records>>::default(), Arc::<AtomicUsize>::default());
        let (known, count) = (Arc::clone(&records), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            let mut packet = [0; 4_096];
            loop {
                let (bytes, from) = socket.recv_from(&mut packet).await.unwrap();
                let mut message = Message::from_vec(&packet[..bytes]).unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                answer(&mut message, &known.lock().unwrap());
                socket.send_to(&message.to_vec().unwrap(), from).await.unwrap();
            }
        });
        Self { address, records, asked, task }
    }

    fn set(&self, name: &str, kind: RecordType, data: Vec<RData>, ttl: u32) {
        self.records.lock().unwrap().insert((name.to_owned(), kind), (data, ttl));
    }

    fn name(&self, name: &str, addresses: &[IpAddr], ttl: u32) {
        let (mut four, mut six) = (Vec::new(), Vec::new());
        for address in addresses {
            match address {
                IpAddr::V4(address) => four.push(RData::A(A(*address))),
                IpAddr::V6(address) => six.push(RData::AAAA(AAAA(*address))),
            }
        }
        self.set(name, RecordType::A, four, ttl);
        self.set(name, RecordType::AAAA, six, ttl);
    }

    /// Servers by priority, weight, port and name.
    fn service(&self, name: &str, servers: &[(u16, u16, u16, &str)], ttl: u32) {
        let record = |(priority, weight, port, target): &(u16, u16, u16, &str)| {
            let target = Name::from_utf8(format!("{target}.")).unwrap();
            RData::SRV(SRV::new(*priority, *weight, *port, target))
        };
        self.set(name, RecordType::SRV, servers.iter().map(record).collect(), ttl);
    }

    /// It can't say anything about this name.
    fn fails(&self, name: &str) {
        self.name(name, &[], FAILS);
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn settings(&self, endpoint: String) -> Settings {
        let dns = Dns {
            servers: vec![self.address],
            ttl: Duration::from_secs(1)..=Duration::from_secs(300),
        };
        Settings { endpoints: vec![endpoint.into()], dns: Some(dns), ..settings(&[]) }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn answer(message: &mut Message, known: &Records) {
    message.metadata.message_type = MessageType::Response;
    message.metadata.authoritative = true;
    message.additionals.clear();
    let query = message.queries[0].clone();
    let name = query.name().to_utf8().trim_end_matches('.').to_owned();
    match known.get(&(name, query.query_type())) {
        Some((_, FAILS)) => message.metadata.response_code = ResponseCode::ServFail,
        Some((data, ttl)) => {
            for data in data {
                let record = Record::from_rdata(query.name().clone(), *ttl, data.clone());
                message.add_answer(record);
            }
        }
        None => message.metadata.response_code = ResponseCode::NXDomain,
    }
}

/// Since when no name has been asked for.
async fn quiet(names: &NameServer) -> usize {
    let mut asked = names.asked();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        match names.asked() {
            same if same == asked => return asked,
            more => asked = more,
        }
    }
}

#[tokio::test]
async fn a_name_has_addresses_of_both_families_for_as_long_as_the_answer_says() {
    let names = NameServer::start().await;
    let one = named("one").await;
    let port = one.address.port();
    // Nobody listens at the other one.
    let six: IpAddr = "::1".parse().unwrap();
    names.name("api.test", &[one.address.ip(), six], 200);
    let upstream = build(&names.settings(format!("http://api.test:{port}")));
    assert_eq!(answered_by(&upstream).await, "one");
    let addresses: Vec<String> =
        upstream.status().iter().map(|status| status.address.to_string()).collect();
    assert_eq!(addresses, [format!("127.0.0.1:{port}"), format!("[::1]:{port}")]);
    assert_eq!(upstream.0.hosts.holds(), Duration::from_secs(200));
    // It is not asked for again while the answer holds, unless an address takes no connections.
    names.name("api.test", &[one.address.ip()], 200);
    let upstream = build(&upstream.0.settings.clone());
    assert_eq!(answered_by(&upstream).await, "one");
    let asked = quiet(&names).await;
    tally(&upstream, 20).await;
    assert!(!upstream.0.hosts.is_due(&upstream.0));
    assert_eq!(quiet(&names).await, asked);
    // With a shorter time, it is.
    names.name("api.test", &[one.address.ip()], 0);
    let brief = build(&upstream.0.settings.clone());
    assert_eq!(answered_by(&brief).await, "one");
    assert_eq!(brief.0.hosts.holds(), Duration::from_secs(1), "the least");
    names.name("api.test", &["127.0.0.2".parse().unwrap()], 1);
    until_async(async || {
        let _ = in_time(brief.send(get())).await;
        brief.status().iter().all(|status| status.address.to_string().starts_with("127.0.0.2"))
    })
    .await;
}

#[tokio::test]
async fn a_service_has_servers_with_ports_weights_and_priorities() {
    let names = NameServer::start().await;
    let (one, two, spare) = (named("one").await, named("two").await, named("spare").await);
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    for name in ["a.test", "b.test"] {
        names.name(name, &[local], 60);
    }
    let port = |of: &ScriptedUpstream| of.address.port();
    let servers = [
        (10, 1, port(&one), "a.test"),
        (10, 9, port(&two), "b.test"),
        (20, 5, port(&spare), "a.test"),
        (10, 5, 1, "nowhere.test"),
    ];
    names.service("_http._tcp.api.test", &servers, 120);
    let settings = names.settings("http+srv://_http._tcp.api.test".to_owned());
    let upstream = build(&settings);
    let shares = tally(&upstream, 1_000).await;
    assert_eq!(shares.len(), 2, "{shares:?}");
    assert!((40..180).contains(&shares["one"]), "{shares:?}");
    assert_eq!(upstream.0.hosts.holds(), Duration::from_secs(60), "the shortest of all");
    assert_eq!(upstream.status().len(), 3);
    // Those of the next priority are for when no other is left.
    for host in upstream.0.hosts.current().iter().take(2) {
        host.eject_until(u64::MAX);
    }
    assert_eq!(answered_by(&upstream).await, "spare");
    // The weights may change, and a server may go. Its state stays with the address.
    let brief = |servers: &[_]| names.service("_http._tcp.api.test", servers, 1);
    brief(&servers);
    let upstream = build(&settings);
    assert_eq!(answered_by(&upstream).await.len(), 3);
    let hosts = upstream.0.hosts.current();
    let of_two = hosts.iter().find(|host| host.address == HostAddress::Ip(two.address)).unwrap();
    of_two.eject_until(u64::MAX);
    brief(&[(10, 3, port(&two), "b.test"), (10, 1, port(&one), "a.test")]);
    until_async(async || {
        answered_by(&upstream).await;
        upstream.status().len() == 2
    })
    .await;
    let hosts = upstream.0.hosts.current();
    let of_two = hosts.iter().find(|host| host.address == HostAddress::Ip(two.address)).unwrap();
    assert!(of_two.is_ejected() && of_two.standing.weight == 3);
    assert_eq!(answered_by(&upstream).await, "one");
}

#[tokio::test]
async fn what_is_not_found_leaves_what_was_known() {
    let names = NameServer::start().await;
    let one = named("one").await;
    names.name("a.test", &[one.address.ip()], 1);
    names.service("_http._tcp.api.test", &[(0, 0, one.address.port(), "a.test")], 1);
    let upstream = build(&names.settings("http+srv://_http._tcp.api.test".to_owned()));
    assert_eq!(answered_by(&upstream).await, "one");
    names.records.lock().unwrap().clear();
    let asked = names.asked();
    until_async(async || {
        assert_eq!(answered_by(&upstream).await, "one");
        names.asked() > asked
    })
    .await;
    quiet(&names).await;
    assert_eq!(answered_by(&upstream).await, "one");
    assert_eq!(upstream.0.hosts.holds(), Duration::from_secs(5), "it is asked for again soon");
    // One that was never found is an error of the request.
    let never = build(&names.settings("http+srv://_http._tcp.none.test".to_owned()));
    assert_eq!(in_time(never.send(get())).await.unwrap_err().cause, Cause::Connect);
}

#[tokio::test]
async fn servers_whose_name_can_not_be_asked_for_stay() {
    let names = NameServer::start().await;
    let (one, two) = (named("one").await, named("two").await);
    names.name("a.test", &[one.address.ip()], 300);
    names.name("b.test", &[two.address.ip()], 1);
    let servers = [(0, 1, one.address.port(), "a.test"), (0, 1, two.address.port(), "b.test")];
    names.service("_http._tcp.api.test", &servers, 1);
    let upstream = build(&names.settings("http+srv://_http._tcp.api.test".to_owned()));
    assert_eq!(tally(&upstream, 60).await.len(), 2);
    names.fails("b.test");
    let asked = names.asked();
    until_async(async || {
        answered_by(&upstream).await;
        names.asked() > asked
    })
    .await;
    quiet(&names).await;
    assert_eq!(tally(&upstream, 60).await.len(), 2);
    assert_eq!(upstream.0.hosts.holds(), Duration::from_secs(5), "it is asked for again soon");
}

#[test]
fn services_that_can_not_be_asked_for_are_errors() {
    let errors = |url: &str, dns: Option<Dns>, server_name: Option<&str>| {
        let tls = weir_tls::ClientTls {
            server_name: server_name.map(str::to_owned),
            ..weir_tls::ClientTls::default()
        };
        let settings = Settings { dns, tls, ..Settings::new("api", vec![url.to_owned()]) };
        match Upstream::build(&settings, &Metrics::new(1)) {
            Ok(_) => String::new(),
            Err(errors) => format!("{} {}", errors[0].setting, errors[0].expected),
        }
    };
    let dns = || {
        let ttl = Duration::from_secs(1)..=Duration::from_secs(2);
        Some(Dns { servers: vec![([127, 0, 0, 1], 53).into()], ttl })
    };
    let service = "_http._tcp.api.test";
    assert!(errors(&format!("http+srv://{service}"), None, None).contains("`dns = {}`"));
    assert!(errors(&format!("http+srv://{service}:80"), dns(), None).contains("without a port"));
    assert!(errors("http+srv://10.0.0.1", dns(), None).contains("the name of a service"));
    assert!(errors(&format!("https+srv://{service}"), dns(), None).contains("tls.server_name"));
    assert_eq!(errors(&format!("https+srv://{service}"), dns(), Some("api.test")), "");
    assert_eq!(errors(&format!("http+srv://{service}"), dns(), None), "");
}
