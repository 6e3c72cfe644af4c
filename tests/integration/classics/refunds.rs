//! A hundred mails an hour, several workers, sends that fail: counting up first and down again
//! afterwards.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use weir::limit::{Ending, Take};
use weir::plan::{Limit, Plan, Refund};

use super::{BEGIN_S, held};
use crate::harness::nodes::{Node, exact, fixed_window, of};
use crate::harness::redis::Connection;

const QUOTA: u64 = 100;
const MAILS: u32 = 130;
const WORKERS: usize = 10;
const HOUR_MS: u64 = 3_600_000;

/// Mails that wait, and those that were sent. The first try of every third one fails.
#[derive(Default)]
struct Post {
    queue: VecDeque<u32>,
    failed_once: BTreeSet<u32>,
    sent: BTreeSet<u32>,
}

impl Post {
    fn new() -> Self {
        Self { queue: (0..MAILS).collect(), ..Self::default() }
    }

    /// Whether it went out; if not, it waits again.
    fn send(&mut self, mail: u32) -> bool {
        let goes = !mail.is_multiple_of(3) || !self.failed_once.insert(mail);
        if goes {
            assert!(self.sent.insert(mail), "mail {mail} was sent twice");
        } else {
            self.queue.push_back(mail);
        }
        goes
    }
}

/// INCR, and DECR where it was one too many or the send failed.
fn naive_worker(client: &mut Connection, post: &mut Post) -> bool {
    let Some(mail) = post.queue.pop_front() else { return false };
    if client.ask(&["INCR", "mails"]).number() > QUOTA as i64 {
        client.ask(&["DECR", "mails"]);
        post.queue.push_front(mail);
        return false;
    }
    client.ask(&["EXPIRE", "mails", "3600", "NX"]);
    if !post.send(mail) {
        client.ask(&["DECR", "mails"]);
    }
    true
}

/// Workers in turn, until all are refused or have nothing to do.
fn naive_workers(workers: &mut [Connection], post: &mut Post) {
    let mut busy = true;
    while busy {
        busy = false;
        for worker in &mut *workers {
            busy |= naive_worker(worker, post);
        }
    }
}

#[test]
fn roll_back_by_decr_loses_what_a_killed_worker_had_and_carries_late_ones_into_the_next_hour() {
    let (time, redis) = held();
    let mut workers: Vec<Connection> = (0..WORKERS).map(|_| redis.connect()).collect();
    // Killed: its INCR has run, its answer is read by nobody, its mail goes back into the queue.
    redis.connect().ask(&["INCR", "mails"]);
    let mut post = Post::new();
    naive_workers(&mut workers, &mut post);
    assert_eq!(post.sent.len() as u64, QUOTA - 1, "one of the hour's hundred was never sent");
    assert_eq!(workers[0].ask(&["GET", "mails"]).number(), QUOTA as i64);

    // Ten sends are under way when the hour ends, and fail in the next one: DECR of a counter that
    // is no longer theirs.
    workers[0].ask(&["DEL", "mails"]);
    for worker in &mut workers {
        worker.ask(&["INCR", "mails"]);
        worker.ask(&["EXPIRE", "mails", "3600", "NX"]);
    }
    time.set(BEGIN_S + 3_601);
    for worker in &mut workers {
        worker.ask(&["DECR", "mails"]);
    }
    assert_eq!(workers[0].ask(&["GET", "mails"]).number(), -10);
    let mut post = Post::new();
    naive_workers(&mut workers, &mut post);
    assert_eq!(post.sent.len() as u64, QUOTA + 10, "ten more than the hour allows");
}

fn mails(algorithm: &weir::plan::Algorithm) -> Arc<Plan> {
    of(vec![Limit { refund: Refund::Unsent, ..Limit::new("mails", "mails", algorithm.clone()) }])
}

/// One worker until it is refused or has nothing to do.
async fn worker(node: Node, plan: Arc<Plan>, post: Arc<Mutex<Post>>) {
    let next = || post.lock().unwrap().queue.pop_front();
    while let Some(mail) = next() {
        match node.take(&plan).await {
            Take::Granted(_, grant) => {
                // The send takes its time: others take meanwhile.
                tokio::task::yield_now().await;
                let went = post.lock().unwrap().send(mail);
                grant.settle(if went { Ending::Completed } else { Ending::Unsent }, &[]);
            }
            Take::Refused(_) => return post.lock().unwrap().queue.push_front(mail),
            Take::Unavailable => panic!("the store did not answer"),
        }
    }
}

/// Workers on `nodes` until a whole round of them sends nothing more.
async fn workers(nodes: &[Node], plan: &Arc<Plan>, post: &Arc<Mutex<Post>>) {
    loop {
        let before = post.lock().unwrap().sent.len();
        let running = (0..WORKERS).map(|number| {
            worker(nodes[number % nodes.len()].clone(), Arc::clone(plan), Arc::clone(post))
        });
        running.collect::<tokio::task::JoinSet<()>>().join_all().await;
        // What the last ones gave back has arrived.
        for node in nodes {
            node.drain().await;
        }
        if post.lock().unwrap().sent.len() == before {
            return;
        }
    }
}

/// A take that is sent and whose worker is gone before its answer comes.
async fn killed_in_mid_take(node: &Node, plan: &Arc<Plan>) {
    let mut take = std::pin::pin!(node.take(plan));
    std::future::poll_fn(|context| {
        assert!(take.as_mut().poll(context).is_pending(), "it has its answer already");
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn of_a_hundred_mails_an_hour_exactly_a_hundred_are_sent_though_sends_fail_and_a_worker_is_killed()
 {
    // In one moment: a bucket would otherwise refill, and of what it is given back it keeps what
    // has flowed back by itself.
    let (_time, redis) = held();
    for algorithm in exact(QUOTA, HOUR_MS) {
        let nodes = Node::several(4, redis.address);
        let (plan, post) = (mails(&algorithm), Arc::new(Mutex::new(Post::new())));
        let mail = post.lock().unwrap().queue.pop_front().unwrap();
        killed_in_mid_take(&nodes[0], &plan).await;
        post.lock().unwrap().queue.push_back(mail);
        workers(&nodes, &plan, &post).await;
        assert_eq!(post.lock().unwrap().sent.len() as u64, QUOTA, "{algorithm:?}");
        assert_eq!(nodes[1].left(&plan).await, 0, "{algorithm:?}");
        let post = post.lock().unwrap();
        let all: BTreeSet<u32> = post.sent.iter().chain(&post.queue).copied().collect();
        assert_eq!(
            (all.len(), post.queue.len()),
            (MAILS as usize, MAILS as usize - 100),
            "each mail was sent or waits"
        );
    }
}

#[tokio::test]
async fn what_fails_after_its_hour_adds_nothing_to_the_next_one() {
    let (time, redis) = held();
    let nodes = Node::several(4, redis.address);
    let plan = mails(&fixed_window(QUOTA, HOUR_MS));
    let mut under_way = Vec::new();
    for node in nodes.iter().cycle().take(10) {
        let Take::Granted(_, grant) = node.take(&plan).await else { panic!("refused") };
        under_way.push(grant);
    }
    time.set(BEGIN_S + 3_601);
    // Five fail before anything of the new hour is counted, five in the midst of it.
    let late = under_way.split_off(5);
    under_way.into_iter().for_each(|grant| grant.settle(Ending::Unsent, &[]));
    assert_eq!(nodes[0].admitted(&plan, 50).await, 50);
    late.into_iter().for_each(|grant| grant.settle(Ending::Unsent, &[]));
    for node in &nodes {
        node.drain().await;
    }
    assert_eq!(nodes[0].admitted(&plan, 60).await, 50, "a hundred in the second hour");
}

/// What stands in for nobody can know: a worker that is gone with its grant in hand may have sent
/// its mail. It is never over, and it ends with the hour.
#[tokio::test]
async fn a_worker_that_dies_with_its_grant_costs_one_mail_of_this_hour_and_none_of_the_next() {
    let (time, redis) = held();
    let address = redis.address;
    let plan = mails(&fixed_window(QUOTA, HOUR_MS));
    let killed = Arc::clone(&plan);
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let grant = runtime.block_on(async { Node::single(address).take(&killed).await });
        assert!(matches!(grant, Take::Granted(..)));
        // Its runtime goes first, as in a crash: whatever the grant still did would reach nobody.
        drop(runtime);
    });
    process.join().unwrap();
    let nodes = Node::several(4, redis.address);
    let post = Arc::new(Mutex::new(Post::new()));
    workers(&nodes, &plan, &post).await;
    assert_eq!(post.lock().unwrap().sent.len() as u64, QUOTA - 1);
    time.set(BEGIN_S + 3_600);
    let post = Arc::new(Mutex::new(Post::new()));
    workers(&nodes, &plan, &post).await;
    assert_eq!(post.lock().unwrap().sent.len() as u64, QUOTA);
    assert_eq!(redis.keys_without_lifetime(), [] as [&str; 0]);
}
