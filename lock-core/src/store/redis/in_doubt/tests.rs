//! Which claims, places and cuts stay on record, and which replies end them.

use super::*;

fn token() -> (InDoubt<()>, Token) {
    (InDoubt::default(), Token::fresh().unwrap())
}

fn name() -> Name {
    Name::internal("test", "k")
}

/// Connections to one process.
fn way(generation: u64) -> Way {
    Way { generation, clock: ClockId::new(1) }
}

fn void(after: u64) -> Void {
    Void { after, by: Instant::now().saturating_add(Duration::from_secs(3_600)) }
}

#[test]
fn release_on_the_connection_of_the_claim_is_final() {
    let (in_doubt, token) = token();
    drop(in_doubt.sent(token, void(1_000), way(1)));
    assert!(in_doubt.contains(token));
    assert_eq!(in_doubt.released(token, way(1), 500), None);
    assert!(!in_doubt.contains(token));
}

#[test]
fn claims_on_two_connections_end_by_time_alone() {
    let (in_doubt, token) = token();
    drop(in_doubt.sent(token, void(1_000), way(1)));
    drop(in_doubt.sent(token, void(1_200), way(2)));
    for generation in [1, 2, 3] {
        let left = in_doubt.released(token, way(generation), 500);
        assert_eq!(left, Some(Duration::from_micros(700)));
    }
    assert_eq!(in_doubt.released(token, way(2), 1_200), None);
    assert!(!in_doubt.contains(token));
}

/// After a failover the clock of the new primary may be far ahead, or far behind.
#[test]
fn release_on_another_server_is_final_when_the_claim_is_void_by_our_clock() {
    let (in_doubt, token) = token();
    let other = Way { generation: 2, clock: ClockId::new(2) };
    drop(in_doubt.sent(token, void(1_000), way(1)));
    for us in [0, 1_000, u64::MAX] {
        let left = in_doubt.released(token, other, us).unwrap();
        assert!(left > Duration::from_secs(3_500), "{left:?}");
    }
    assert_eq!(in_doubt.released(token, way(3), 1_000), None);

    let passed = Void { by: Instant::now(), ..void(1_000) };
    drop(in_doubt.sent(token, passed, way(1)));
    assert_eq!(in_doubt.released(token, other, 0), None);

    // Of two servers neither clock tells of both.
    drop(in_doubt.sent(token, passed, way(1)));
    drop(in_doubt.sent(token, void(1_000), other));
    for clock in [way(3), Way { generation: 3, ..other }] {
        assert!(in_doubt.released(token, clock, u64::MAX).is_some());
    }
}

#[test]
fn place_is_known_until_a_grant_or_a_release_ends_it() {
    let (in_doubt, token) = token();
    let member: Arc<str> = "t:1:=i".into();
    in_doubt.queueing(token, &name(), &member, void(0).by);
    assert_eq!(in_doubt.member(token).as_ref(), Some(&member));
    in_doubt.granted(token);
    assert!(!in_doubt.contains(token));

    in_doubt.queueing(token, &name(), &member, void(0).by);
    drop(in_doubt.sent(token, void(1_000), way(1)));
    in_doubt.granted(token);
    assert_eq!(
        in_doubt.member(token),
        Some(member),
        "the unanswered claim may give it a place again"
    );
    assert!(in_doubt.released_from(token).is_none());
    assert_eq!(in_doubt.released(token, way(1), 0), None);
    assert!(!in_doubt.contains(token));
    assert_eq!(in_doubt.released_from(token), Some(name()));
}

/// A master that took over may not know that the token was served, and grant it the lock again.
#[test]
fn served_token_is_remembered_once_it_is_released() {
    let (in_doubt, token) = token();
    in_doubt.queueing(token, &name(), &"t:1:=i".into(), void(0).by);
    in_doubt.granted(token);
    assert!(in_doubt.released_from(token).is_none(), "it has the lock");
    assert_eq!(in_doubt.released(token, way(1), 0), None);
    assert_eq!(in_doubt.released_from(token), Some(name()));

    let without_place = Token::fresh().unwrap();
    in_doubt.sent(without_place, void(1_000), way(1)).answered(&Ok(()));
    in_doubt.granted(without_place);
    assert_eq!(in_doubt.released(without_place, way(1), 0), None);
    assert!(in_doubt.released_from(without_place).is_none());

    for _ in 0..=MAX_SERVED {
        let token = Token::fresh().unwrap();
        in_doubt.queueing(token, &name(), &"t:1:=i".into(), void(0).by);
        in_doubt.granted(token);
    }
    assert!(in_doubt.lock().served.len() <= MAX_SERVED);
}

#[test]
fn refused_claim_for_a_place_leaves_no_doubt() {
    let (in_doubt, token) = token();
    in_doubt.queueing(token, &name(), &"t:1:=i".into(), void(0).by);
    let refused = Fault::of(redis::make_extension_error("LOADING".into(), None));
    in_doubt.sent(token, void(1_000), way(1)).answered::<()>(&Err(refused));
    assert!(in_doubt.contains(token) && !in_doubt.may_be_granted(token));
    let no_memory = Fault::of(redis::make_extension_error("OOM".into(), None));
    in_doubt.sent(token, void(1_000), way(1)).answered::<()>(&Err(no_memory));
    assert!(!in_doubt.may_be_granted(token));

    drop(in_doubt.sent(token, void(1_000), way(1)));
    assert!(in_doubt.may_be_granted(token), "this claim had no reply");
    assert_eq!(in_doubt.released(token, way(1), 500), None);
    assert!(!in_doubt.may_be_granted(token));

    in_doubt.queueing(token, &name(), &"t:1:=i".into(), void(0).by);
    in_doubt.queued(token);
    assert!(in_doubt.may_be_granted(token));
}

#[test]
fn renewal_for_longer_than_a_cut_leaves_counts_when_the_cut_is_void() {
    let (in_doubt, token) = token();
    let by = void(0).by;
    let cut = || Some((Cut { longest_ms: 1_000, void_after: 900 }, by));
    let clock = way(1).clock;
    let first = in_doubt.renewing(token, 1_000, clock, 100, cut);
    assert_eq!(first.cut, cut().map(|(cut, _)| cut));
    let meanwhile = in_doubt.renewing(token, 30_000, clock, 200, cut);
    assert_eq!(meanwhile.cut, None, "one at a time");
    assert!(!meanwhile.answered(&Ok(()), 900));
    assert!(in_doubt.renewing(token, 30_000, clock, 200, cut).answered(&Ok(()), 901));
    assert!(in_doubt.renewing(token, 1_000, clock, 200, cut).answered(&Ok(()), 300));

    // Without a reply it stays until it is void.
    assert!(first.answered::<()>(&Err(Fault::gone()), 0));
    assert!(!in_doubt.renewing(token, 30_000, clock, 899, cut).answered(&Ok(()), 899));
    assert!(in_doubt.renewing(token, 30_000, clock, 901, || None).answered(&Ok(()), 901));
    assert!(in_doubt.contains(token));
    assert_eq!(in_doubt.released(token, way(2), 0), None);
    assert!(!in_doubt.contains(token));
}

/// After a failover an earlier cut may be executed by the old server alone, or not at all: no
/// time of the new one tells.
#[test]
fn renewal_on_another_server_counts_when_an_earlier_cut_is_void_by_our_clock() {
    let (in_doubt, token) = token();
    let (old, new) = (ClockId::new(1), ClockId::new(2));
    let cut = |by| move || Some((Cut { longest_ms: 1_000, void_after: 900 }, by));
    let first = in_doubt.renewing(token, 1_000, old, 100, cut(void(0).by));
    let meanwhile = in_doubt.renewing(token, 30_000, new, 5_000, cut(void(0).by));
    assert_eq!(meanwhile.cut, None);
    assert!(!meanwhile.answered(&Ok(()), 5_000));
    assert!(first.answered(&Ok(()), 200));

    let lost = in_doubt.renewing(token, 1_000, old, 100, cut(Instant::now()));
    assert!(lost.cut.is_some());
    assert!(in_doubt.renewing(token, 30_000, new, 0, || None).answered(&Ok(()), 0));
}

#[test]
fn renewal_cuts_if_the_last_cut_and_all_claims_are_answered_or_void() {
    let (in_doubt, token) = token();
    let by = void(0).by;
    let cut = || Some((Cut { longest_ms: 1_000, void_after: 2_000 }, by));
    let its = || cut().map(|(cut, _)| cut);
    let clock = way(1).clock;
    assert!(in_doubt.renewing(token, 1_000, clock, 0, cut).answered(&Ok(()), 10));
    assert!(!in_doubt.contains(token));
    drop(in_doubt.sent(token, void(1_000), way(1)));
    assert_eq!(in_doubt.renewing(token, 1_000, clock, 1_000, cut).cut, None);
    assert_eq!(in_doubt.renewing(token, 1_000, clock, 1_001, cut).cut, its());
    assert_eq!(in_doubt.renewing(token, 1_000, clock, 2_000, cut).cut, None, "it had no reply");
    assert_eq!(in_doubt.renewing(token, 1_000, clock, 2_001, cut).cut, its());
}

#[test]
fn answered_claims_leave_no_record_and_old_records_are_swept() {
    let (in_doubt, token) = token();
    in_doubt.sent(token, void(1_000), way(1)).answered(&Ok(()));
    assert_eq!(in_doubt.lock().records.len(), 0);
    let by = Instant::now();
    for after in 0..3 * SWEEP_AT as u64 {
        drop(in_doubt.sent(Token::fresh().unwrap(), Void { after, by }, way(1)));
    }
    drop(in_doubt.sent(token, void(1_000), way(1)));
    assert_eq!(in_doubt.lock().records.len(), 3 * SWEEP_AT + 1);
    in_doubt.lock().sweep(by.saturating_add(CLOCK_SLACK));
    assert_eq!(in_doubt.lock().records.len(), 1);
    assert!(in_doubt.contains(token), "it may still be executed");
}
