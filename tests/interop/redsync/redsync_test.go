// Package redsync_interop: redsync and this library exclude each other.
package redsync_interop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

// How long the two contend. redsync looks every 50 to 250 ms, so it looks about 50 times.
const contention = 8 * time.Second

// Longer than any step takes, also on a machine that is busy.
const patience = 30 * time.Second

func connect(t *testing.T) (*goredislib.Client, *redsync.Redsync) {
	t.Helper()
	options, err := goredislib.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		t.Fatal(err)
	}
	client := goredislib.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client, redsync.New(goredis.NewPool(client))
}

// A process of this library until its input ends.
type peer struct {
	t     *testing.T
	input io.Closer
	lines <-chan string
}

func start(t *testing.T, arguments ...string) *peer {
	t.Helper()
	arguments = append([]string{arguments[0], os.Getenv("REDIS_URL")}, arguments[1:]...)
	command := exec.Command(os.Getenv("LOCK_PEER"), arguments...)
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	lines := make(chan string)
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			select {
			case lines <- scanner.Text():
			case <-ended:
				return
			}
		}
	}()
	return &peer{t, input, lines}
}

func (p *peer) says(wanted string) {
	p.t.Helper()
	if line := p.line(); line != wanted {
		p.t.Fatalf("the peer says %q instead of %q", line, wanted)
	}
}

// The next line; none if the peer has ended.
func (p *peer) line() string {
	p.t.Helper()
	select {
	case line := <-p.lines:
		return line
	case <-time.After(patience):
		p.t.Fatal("the peer says nothing")
		return ""
	}
}

// Waits until one of our processes has a place in the queue of the key.
func waitForAPlace(t *testing.T, client *goredislib.Client, key string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		count, err := client.ZCard(context.Background(), "lock:{0}:q:"+key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if count == 1 {
			return
		}
	}
	t.Fatal("no process of ours waits")
}

func TestRedsyncIsRefusedWhileWeHoldAndServedAfter(t *testing.T) {
	_, locks := connect(t)
	holder := start(t, "hold", "order:go-1")
	holder.says("held")
	mutex := locks.NewMutex("lock:order:go-1", redsync.WithTries(1))
	if err := mutex.Lock(); err == nil {
		t.Fatal("redsync got a lock that we hold")
	}
	holder.input.Close()
	holder.says("released InTime")
	if err := mutex.Lock(); err != nil {
		t.Fatal(err)
	}
	if ok, err := mutex.Unlock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func TestWeAreRefusedWhileRedsyncHoldsAndLeaveItAlone(t *testing.T) {
	client, locks := connect(t)
	mutex := locks.NewMutex("lock:order:go-2")
	if err := mutex.Lock(); err != nil {
		t.Fatal(err)
	}
	start(t, "hold", "order:go-2").says("busy")
	if value := client.Get(context.Background(), "lock:order:go-2").Val(); value != mutex.Value() {
		t.Fatalf("the lock has another value: %q", value)
	}
	if ok, err := mutex.Unlock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func TestWeWaitForRedsync(t *testing.T) {
	client, locks := connect(t)
	mutex := locks.NewMutex("lock:order:go-3")
	if err := mutex.Lock(); err != nil {
		t.Fatal(err)
	}
	waiter := start(t, "wait", "order:go-3")
	waitForAPlace(t, client, "order:go-3")
	if ok, err := mutex.Unlock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	waiter.says("held")
	waiter.input.Close()
	waiter.says("released InTime")
}

func TestNoTurnsOverlapWhileBothContend(t *testing.T) {
	for _, processes := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d processes", processes), func(t *testing.T) {
			// Several processes hand the lock to each other, and may leave redsync none.
			if _, foreign := contend(t, processes, 4); processes == 1 && foreign == 0 {
				t.Error("redsync got no turn, so nothing was tried")
			}
		})
	}
}

// Our waiters hand a lock on, so it is never free for a client that looks from time to time.
func TestRedsyncGetsItsPartOfTheTurnsWhereWeLeaveThem(t *testing.T) {
	for _, processes := range []int{1, 4} {
		for _, tasks := range []int{1, 8} {
			t.Run(fmt.Sprintf("%d processes with %d tasks", processes, tasks), func(t *testing.T) {
				own, foreign := contend(t, processes, tasks, "for-others")
				// About half of them on a quiet machine.
				if foreign == 0 || 10*foreign < own+foreign {
					t.Errorf("redsync got %d of %d turns", foreign, own+foreign)
				}
			})
		}
	}
}

// The turns of our processes and of redsync, none of which may overlap.
func contend(t *testing.T, processes, tasks int, how ...string) (own, foreign int) {
	t.Helper()
	_, locks := connect(t)
	key := "order:" + t.Name()
	inside := filepath.Join(t.TempDir(), "inside")
	peers := make([]*peer, processes)
	for i := range peers {
		peers[i] = start(t, append([]string{"take-turns", key, fmt.Sprint(tasks), inside}, how...)...)
		peers[i].says("ready")
	}
	overlaps := 0
	for end := time.Now().Add(contention); time.Now().Before(end); {
		mutex := locks.NewMutex("lock:"+key, redsync.WithTries(1_000))
		ctx, cancel := context.WithDeadline(context.Background(), end)
		err := mutex.LockContext(ctx)
		isOver := ctx.Err() != nil
		cancel()
		if err != nil && isOver {
			break // Our processes had it all the time.
		}
		if err != nil {
			t.Fatal(err)
		}
		foreign++
		file, err := os.OpenFile(inside, os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			overlaps++
		}
		time.Sleep(time.Millisecond)
		if err == nil {
			file.Close()
			os.Remove(inside)
		}
		if ok, err := mutex.Unlock(); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for _, peer := range peers {
		peer.input.Close()
		var turns, overlapping int
		if _, err := fmt.Sscanf(peer.line(), "turns %d overlaps %d", &turns, &overlapping); err != nil {
			t.Fatal(err)
		}
		own += turns
		overlaps += overlapping
	}
	t.Logf("%d own turns, %d of redsync, %d overlaps", own, foreign, overlaps)
	if own == 0 || overlaps > 0 {
		t.Fail()
	}
	return own, foreign
}
