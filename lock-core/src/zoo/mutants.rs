//! The list. It needs nothing of the crate, for the runner reads it, too.

/// A known bug, and who must notice it.
#[derive(Debug)]
#[allow(dead_code)] // half of it is read by the crate, the other half by the runner
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// What goes wrong, and where it went wrong before.
    pub(crate) bug: &'static str,
    /// The target of the test that must fail: a test of the workspace, or `lock_core` for the unit tests.
    pub(crate) suite: &'static str,
    pub(crate) test: &'static str,
    /// Pieces of the scripts, and what stands there instead. None: the mutant is in the code, at `mutant!`.
    pub(crate) script: &'static [(&'static str, &'static str)],
}

const fn code(
    name: &'static str,
    bug: &'static str,
    suite: &'static str,
    test: &'static str,
) -> Mutant {
    Mutant { name, bug, suite, test, script: &[] }
}

const fn lua(
    name: &'static str,
    bug: &'static str,
    suite: &'static str,
    test: &'static str,
    script: &'static [(&'static str, &'static str)],
) -> Mutant {
    Mutant { name, bug, suite, test, script }
}

/// The variable that names the mutant.
#[allow(dead_code)] // as above
pub(crate) const VARIABLE: &str = "LOCK_MUTANT";

pub(crate) const MUTANTS: &[Mutant] = &[
    // What a lease is worth.
    code(
        "deadline-from-the-reply",
        "a lease counts from the answer to its claim (node-redlock#167, #369)",
        "faults",
        "a_grant_that_arrives_when_its_lease_is_over_is_refused_or_asked_for_again",
    ),
    code(
        "grant-that-is-over",
        "a grant is handed over when its lease has ended on the way (etcd#11456, node-redlock#296)",
        "lock_core",
        "a_grant_that_used_up_the_lease_is_refused",
    ),
    code(
        "loss-is-not-final",
        "a renewal that is confirmed late revives a lease that was lost (redis-semaphore#175)",
        "lock_core",
        "loss_is_final",
    ),
    code(
        "body-beside-a-timer",
        "the body races with a timer, as in `select!`, and is polled after the deadline",
        "faults",
        "a_late_runtime_polls_the_body_of_run_after_its_deadline",
    ),
    // Renewals.
    code(
        "renewal-after-release",
        "the renewal is not stopped by the release (redisson#7272, spring-integration#10446)",
        "renewal",
        "a_lease_that_was_released_is_renewed_while_somebody_watches_it",
    ),
    lua(
        "renewal-by-set",
        "a renewal writes the key instead of lengthening it (redisson#7272, redis-semaphore#175)",
        "conformance",
        "a_renewal_never_creates_or_steals",
        &[(
            "if holder ~= token then return holder and 2 or 0 end\n  \
             if redis.call('PTTL', lock) < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end",
            "redis.call('SET', lock, token, 'PX', ttl)",
        )],
    ),
    lua(
        "renewal-that-shortens",
        "an ordinary renewal cuts what a longer one gave (the first form of this protocol, P5)",
        "conformance",
        "a_renewal_never_shortens",
        &[(
            "if redis.call('PTTL', lock) < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end",
            "redis.call('PEXPIRE', lock, ttl)",
        )],
    ),
    code(
        "renewal-at-a-third-of-the-full-ttl",
        "a lease that was handed over for less is renewed as if it had all (the first form of this protocol, P3)",
        "hand_off",
        "a_lease_that_the_store_granted_for_less_gets_all_of_it_unless_its_section_is_short",
    ),
    code(
        "failed-renewal-is-a-loss",
        "one renewal that meets an error ends the lease (cozy-stack#4911, distkit)",
        "faults",
        "a_renewal_that_fails_once_moves_no_deadline_and_loses_nothing",
    ),
    code(
        "failed-renewal-counts",
        "a renewal without an answer counts as confirmed (redlock-universal)",
        "holding",
        "a_failed_renewal_is_no_loss_and_a_silent_store_is_one_at_the_deadline",
    ),
    code(
        "silent-connection-is-kept",
        "a connection on which packets vanish is never replaced (ConnectionManager of redis-rs, centrifugo#1192)",
        "faults",
        "a_silent_connection_is_replaced_before_the_lease_is_lost",
    ),
    // Releases, and what is given up.
    lua(
        "delete-without-compare",
        "a release deletes the key, whoever holds it (ShedLock#2583, many others)",
        "conformance",
        "only_the_holder_releases",
        &[
            (
                "if holders[i] == ARGV[2 * i] and ARGV[2 * i + 1] == '0' then",
                "if holders[i] and ARGV[2 * i + 1] == '0' then",
            ),
            (
                "local holder = redis.pcall('GET', lock)\n  if holder == token then",
                "local holder = redis.pcall('GET', lock)\n  if holder then",
            ),
        ],
    ),
    code(
        "token-of-the-lock-object",
        "a token for each lock object, not for each acquisition: a stale guard releases the next one's \
         (distkit, distributed-lock-redis)",
        "faults",
        "a_stale_guard_of_the_same_mutex_leaves_the_next_one_alone",
    ),
    code(
        "dropped-claim-is-forgotten",
        "a claim that is cancelled in flight is not cleaned up (redisson#2714, #4368; rueidis#1010)",
        "cancellation",
        "an_acquisition_dropped_after_any_poll_leaves_nothing",
    ),
    code(
        "dropped-guard-is-left-to-its-ttl",
        "the lock of an aborted task stays (blnk#354)",
        "faults",
        "an_aborted_task_gives_its_lock_back",
    ),
    code(
        "release-final-at-its-first-answer",
        "a release that is answered is taken for the end, while a claim of its token is on its way (P7)",
        "faults",
        "a_claim_that_arrives_in_time_but_after_its_release_is_released_again",
    ),
    code(
        "awaited-release-is-final",
        "a release that somebody awaits is not repeated, while a claim of its token is on its way",
        "faults",
        "a_claim_that_arrives_behind_an_awaited_release_keeps_the_lock",
    ),
    code(
        "cancelled-claim-is-sent",
        "a claim that was cancelled before its turn is sent behind its release",
        "faults",
        "a_claim_that_is_cancelled_before_its_turn_is_sent",
    ),
    code(
        "cancelled-claim-is-sent-again",
        "a claim that was cancelled before the server asked for its script is sent again behind its release",
        "faults",
        "a_cancelled_claim_whose_script_is_forgotten_is_sent_again",
    ),
    lua(
        "void-time-is-ignored",
        "a claim is executed whenever it arrives (simstudioai/sim#6864, madelson/DistributedLock#191)",
        "faults",
        "a_claim_that_arrives_after_its_own_release_takes_nothing",
        &[("if us > tonumber(void_after) then", "if false then")],
    ),
    code(
        "retry-with-a-new-token",
        "a claim that is sent again waits for the one whose answer was lost (node-redlock#369, F2)",
        "faults",
        "a_grant_whose_reply_is_lost_is_found_by_the_repeated_claim",
    ),
    lua(
        "claim-that-shortens",
        "a claim that is delivered late cuts a lease that was lengthened meanwhile (P5)",
        "conformance",
        "a_claim_of_the_holder_is_granted_again_and_lengthens",
        &[(
            "if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end",
            "redis.call('PEXPIRE', lock, ttl)",
        )],
    ),
    code(
        "repeated-release-says-expired",
        "a release whose answer was lost finds nobody and reports a loss (redisson#4871, #6651)",
        "faults",
        "a_repeated_release_reports_what_the_first_one_did",
    ),
    // Outcomes.
    code(
        "timeout-is-busy",
        "no answer is reported as held by another (redisson#2801, #543)",
        "faults",
        "a_wait_on_a_silent_store_ends_in_time_and_is_not_busy",
    ),
    code(
        "unknown-is-granted",
        "no answer is taken for a grant: the body runs without its lock (klock#1, wllock#1)",
        "faults",
        "a_body_never_runs_without_its_lock",
    ),
    code(
        "wrong-type-is-free",
        "a key that holds something else is taken for a free lock",
        "faults",
        "a_body_never_runs_without_its_lock",
    ),
    code(
        "refusals-are-retried",
        "a key of another type is asked for until the wait is over (redisson#6285, redsync#124)",
        "faults",
        "a_key_of_another_type_is_an_error_at_once",
    ),
    code(
        "forgotten-script",
        "NOSCRIPT after a restart is an error",
        "faults",
        "forgotten_scripts_are_not_noticed",
    ),
    code(
        "failed-release-replaces-the-result",
        "the body has done its work, its caller is told of the release (node-redlock#369, F7)",
        "faults",
        "a_body_keeps_its_result_when_the_release_fails",
    ),
    code(
        "keys-that-collide",
        "values keep their separators, so that two pairs give one key (openai-agents-go#115, festabook#1028)",
        "macros",
        "different_values_give_different_keys",
    ),
    // Numbers of grants.
    lua(
        "fence-without-a-floor",
        "a plain counter: when it is lost, numbers begin again",
        "faults",
        "a_lost_counter_does_not_make_numbers_smaller",
        &[
            ("number = before < us and us or before + 1", "number = before + 1"),
            ("if number and number - 1 > us then", "if number then"),
        ],
    ),
    lua(
        "fence-by-the-clock-alone",
        "the server's time as the number: a step back repeats numbers",
        "faults",
        "a_clock_that_went_back_does_not_make_numbers_smaller",
        &[("local before = last and tonumber(last) or 0", "local before = 0")],
    ),
    code(
        "fence-by-a-second-command",
        "INCR after the grant: who is slow between the two gets the larger number",
        "zoo",
        "a_number_is_drawn_when_its_lock_is_not_ours_any_more",
    ),
    code(
        "hand-off-with-the-same-fence",
        "those who share one grant of the store share its number",
        "hand_off",
        "those_who_wait_are_served_in_order_and_each_has_a_larger_number",
    ),
    // Waiting.
    code(
        "no-claim-after-subscribing",
        "a release between the failed try and the subscription is missed (python-redis-lock#71)",
        "faults",
        "a_freed_lock_is_taken_late",
    ),
    code(
        "polling-without-a-pause",
        "whoever waits asks as fast as it can (redlock-rs#11, rslock)",
        "faults",
        "a_lock_of_ours_is_polled",
    ),
    code(
        "messages-alone",
        "a waiter whose message is lost waits for the ttl (redisson#5761, #3891)",
        "faults",
        "a_waiter_depends_on_messages_that_are_lost",
    ),
    code(
        "grant-without-its-ticket",
        "a late grant is taken for the present one (the first form of this protocol, P1)",
        "faults",
        "a_grant_under_an_old_ticket_is_taken_for_one_under_the_new_one",
    ),
    code(
        "grant-from-its-receipt",
        "a lease that was handed over counts from the message",
        "lock_core",
        "lease_by_message_ends_before_the_lock",
    ),
    code(
        "grant-from-an-unanswered-claim",
        "a lease that was handed over counts from a claim that nobody answered (P2)",
        "zoo",
        "a_lease_counts_from_the_arrival_of_its_grant",
    ),
    lua(
        "ticket-kept-at-a-direct-grant",
        "who takes a lock that fell free keeps its place, and hands the lock to itself (P8)",
        "faults",
        "a_foreign_release_goes_unnoticed",
        &[("if member then line.leave(member) end", "")],
    ),
    lua(
        "first-to-ask-overtakes",
        "a lock that fell free goes to whoever asks first, past those who wait (P9)",
        "faults",
        "a_try_takes_an_expired_lock_from_the_head",
        &[("if not (head and head ~= member and line.hand_off('')) then", "if true then")],
    ),
    lua(
        "gone-counts-as-told",
        "the lock is handed to a process that is dead (redisson#3730, #3004)",
        "process",
        "a_killed_head_holds_up_the_next_process",
        &[("if type(heard) ~= 'number' or heard > 0 or sign == '~' then", "if true then")],
    ),
    lua(
        "who-gave-up-stays-queued",
        "a waiter that gives up keeps its place (redisson#5019)",
        "faults",
        "a_waiter_that_gave_up_keeps_its_place",
        &[("if member ~= '' then pcall(line_of(lock, queue).leave, member) end", "")],
    ),
    lua(
        "hand-off-that-fails-keeps-the-lock",
        "an error in the queue leaves the lock to its ttl (the first form of this protocol, P11)",
        "zoo",
        "a_queue_that_cannot_be_read_keeps_the_lock",
        &[("if not (ok and given) then", "if ok and not given then")],
    ),
    code(
        "last-attempt-speaks-for-all",
        "a release is said not to have been sent, though an earlier attempt was, and was executed",
        "zoo",
        "a_release_whose_second_attempt_is_not_sent_is_said_to_have_done_nothing",
    ),
    code(
        "last-claim-speaks-for-all",
        "a waiter is said to have done nothing, though the lock may have been handed to it",
        "faults",
        "a_waiter_that_is_cut_off_is_said_to_have_done_nothing",
    ),
    // In the process.
    code(
        "unlock-wakes-nobody",
        "the next task of the process is not woken",
        "hand_off",
        "thousands_of_cancellations_at_any_moment_lose_no_lock_and_wake_everybody",
    ),
    code(
        "hand-off-past-the-deadline",
        "a lease is handed on when it is over",
        "hand_off",
        "a_lease_that_was_handed_to_one_who_slept_on_it_is_not_entered",
    ),
    code(
        "lost-lease-is-handed-on",
        "a lease that was lost is handed on (P18)",
        "hand_off",
        "a_lost_lease_is_never_handed_on",
    ),
    code(
        "hand-offs-without-end",
        "a process keeps the lock among its tasks, the others starve",
        "hand_off",
        "after_sixty_three_hand_offs_another_process_has_its_turn",
    ),
    code(
        "min-hold-is-ignored",
        "a job that is done early is done again elsewhere",
        "holding",
        "min_hold_keeps_the_key_after_an_early_release",
    ),
    lua(
        "min-hold-keeps-the-token",
        "during `min_hold` a late renewal or claim revives the lock (P6)",
        "conformance",
        "a_held_name_stays_taken_until_its_hold_ends",
        &[(
            "redis.call('SET', lock, '=' .. token, 'PX', hold)",
            "redis.call('SET', lock, token, 'PX', hold)",
        )],
    ),
];

/// Those that the simulation must notice, too, in a few of its seeds.
#[allow(dead_code)] // as above
pub(crate) const SIMULATED: &[&str] = &[
    "deadline-from-the-reply",
    "delete-without-compare",
    "dropped-claim-is-forgotten",
    "dropped-guard-is-left-to-its-ttl",
    "failed-renewal-counts",
    "fence-by-a-second-command",
    "fence-without-a-floor",
    "forgotten-script",
    "grant-from-an-unanswered-claim",
    "grant-from-its-receipt",
    "grant-that-is-over",
    "hand-off-with-the-same-fence",
    "renewal-by-set",
    "renewal-that-shortens",
    "silent-connection-is-kept",
    "ticket-kept-at-a-direct-grant",
    "token-of-the-lock-object",
    "unknown-is-granted",
    "unlock-wakes-nobody",
];

/// The shipped scripts, in pieces.
const SCRIPTS: [&str; 4] = [
    include_str!("../store/redis/scripts/acquire.lua"),
    include_str!("../store/redis/scripts/queue.lua"),
    include_str!("../store/redis/scripts/release.lua"),
    include_str!("../store/redis/scripts/renew.lua"),
];

impl Mutant {
    /// Panics if a piece is not there, or not once: then the mutant would be none, or another.
    pub(crate) fn check(&self) {
        for (piece, _) in self.script {
            let times: usize = SCRIPTS.iter().map(|script| script.matches(piece).count()).sum();
            assert_eq!(times, 1, "{}: how often the scripts say `{piece}`", self.name);
        }
    }
}
