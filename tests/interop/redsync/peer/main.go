// Takes a lock on several servers with redsync, again and again: prints `held` when it has it, and
// releases it when it reads a line. Ends when its input does.
//
//	peer KEY URL...
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

func main() {
	var pools []redis.Pool
	for _, url := range os.Args[2:] {
		options, err := goredislib.ParseURL(url)
		if err != nil {
			log.Fatal(err)
		}
		pools = append(pools, goredis.NewPool(goredislib.NewClient(options)))
	}
	locks := redsync.New(pools...)
	lines := bufio.NewScanner(os.Stdin)
	for {
		mutex := locks.NewMutex(os.Args[1], redsync.WithExpiry(10*time.Second), redsync.WithTries(100_000))
		if err := mutex.Lock(); err != nil {
			log.Fatal(err)
		}
		fmt.Println("held")
		goesOn := lines.Scan()
		if ok, err := mutex.Unlock(); !ok || err != nil {
			log.Fatal(ok, err)
		}
		if !goesOn {
			return
		}
	}
}
