"""redis-py's Lock, a hand-typed SET and this library exclude each other."""

import os
import re
import subprocess
import unittest

import redis
from redis.lock import Lock

URL = os.environ["REDIS_URL"]
TOKEN = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")


class Peer:
    """A process that holds a lock of this library until its input ends."""

    def __init__(self, how, key):
        self.process = subprocess.Popen(
            [os.environ["LOCK_PEER"], how, URL, key],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def says(self):
        return self.process.stdout.readline().strip()

    def let_go(self):
        self.process.stdin.close()
        return self.says()

    def end(self):
        self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(10)


class RedisPy(unittest.TestCase):
    def setUp(self):
        self.redis = redis.Redis.from_url(URL, decode_responses=True)
        self.key = f"order:{self.id().rsplit('.', 1)[1]}"
        self.addCleanup(self.redis.close)

    def peer(self, how):
        peer = Peer(how, self.key)
        self.addCleanup(peer.end)
        return peer

    def lock(self):
        return Lock(self.redis, f"lock:{self.key}", timeout=30)

    def test_our_token_is_in_the_plain_key_with_our_ttl(self):
        peer = self.peer("hold")
        self.assertEqual(peer.says(), "held")
        self.assertRegex(self.redis.get(f"lock:{self.key}"), TOKEN)
        self.assertTrue(0 < self.redis.pttl(f"lock:{self.key}") <= 10_000)
        self.assertEqual(peer.let_go(), "released InTime")
        self.assertIsNone(self.redis.get(f"lock:{self.key}"))

    def test_redis_py_is_refused_while_we_hold_and_served_after(self):
        peer = self.peer("hold")
        self.assertEqual(peer.says(), "held")
        lock = self.lock()
        self.assertFalse(lock.acquire(blocking=False))
        self.assertEqual(peer.let_go(), "released InTime")
        self.assertTrue(lock.acquire(blocking=False))
        lock.release()

    def test_a_hand_typed_set_is_refused_while_we_hold(self):
        peer = self.peer("hold")
        self.assertEqual(peer.says(), "held")
        self.assertIsNone(self.redis.set(f"lock:{self.key}", "x", nx=True, px=30_000))
        self.assertEqual(peer.let_go(), "released InTime")
        self.assertTrue(self.redis.set(f"lock:{self.key}", "x", nx=True, px=30_000))

    def test_we_are_refused_while_redis_py_holds_and_leave_it_alone(self):
        lock = self.lock()
        self.assertTrue(lock.acquire(blocking=False))
        peer = self.peer("hold")
        self.assertEqual(peer.says(), "busy")
        self.assertTrue(lock.owned())
        lock.release()

    def test_we_are_refused_while_a_hand_typed_key_exists(self):
        self.assertTrue(self.redis.set(f"lock:{self.key}", "x", nx=True, px=30_000))
        self.assertEqual(self.peer("hold").says(), "busy")
        self.assertEqual(self.redis.get(f"lock:{self.key}"), "x")

    def test_we_wait_for_redis_py_though_it_sends_no_message(self):
        lock = self.lock()
        self.assertTrue(lock.acquire(blocking=False))
        peer = self.peer("wait")
        self.wait_for_a_claim()
        lock.release()
        self.assertEqual(peer.says(), "held")
        self.assertEqual(peer.let_go(), "released InTime")

    def wait_for_a_claim(self):
        with self.redis.monitor() as monitor:
            for line in monitor.listen():
                if "eval" in line["command"].lower() and self.key in line["command"]:
                    return


if __name__ == "__main__":
    unittest.main()
