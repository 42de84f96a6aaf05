// The redsync peer: one program on the real redsync, driven by JSON lines as the workers of the tests are, for locks of
// the kind `simple`. A request that waits does not keep others waiting; requests of one owner must not meet.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type request struct {
	ID      int64  `json:"id"`
	Op      string `json:"op"`
	URL     string `json:"url"`
	Owner   string `json:"owner"`
	Name    string `json:"name"`
	LeaseMs int64  `json:"lease_ms"`
	WaitMs  int64  `json:"wait_ms"`
}

type object map[string]any

type peer struct {
	mutex   sync.Mutex
	sync    *redsync.Redsync
	mutexes map[[2]string]*redsync.Mutex
}

// How often a waiter tries.
const pause = 5 * time.Millisecond

func (p *peer) open(url string) error {
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	p.sync = redsync.New(goredis.NewPool(redis.NewClient(options)))
	return nil
}

// Locks for as long as is asked, within a wait; with none it is one try.
func (p *peer) lock(r request) (object, error) {
	lease := time.Duration(r.LeaseMs) * time.Millisecond
	wait := time.Duration(r.WaitMs) * time.Millisecond
	mutex := p.sync.NewMutex(r.Name, redsync.WithExpiry(lease),
		redsync.WithTries(int(wait/pause)+1), redsync.WithRetryDelay(pause))
	ctx, cancel := context.WithTimeout(context.Background(), wait+10*time.Second)
	defer cancel()
	err := mutex.LockContext(ctx)
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return object{"acquired": false}, nil
	}
	if err != nil {
		return nil, err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.mutexes[[2]string{r.Owner, r.Name}] = mutex
	return object{"acquired": true, "token": mutex.Value()}, nil
}

func (p *peer) held(r request) *redsync.Mutex {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.mutexes[[2]string{r.Owner, r.Name}]
}

func (p *peer) run(r request) (object, error) {
	switch r.Op {
	case "open":
		return object{}, p.open(r.URL)
	case "lock", "try_lock":
		return p.lock(r)
	}
	mutex := p.held(r)
	if mutex == nil {
		return nil, errors.New("there is no such lock, or no such operation")
	}
	var ok bool
	var err error
	switch r.Op {
	case "unlock":
		ok, err = mutex.Unlock()
	case "extend":
		ok, err = mutex.Extend()
	default:
		return nil, errors.New("there is no such operation")
	}
	if ok {
		return object{}, nil
	}
	return nil, err
}

func main() {
	p := &peer{mutexes: map[[2]string]*redsync.Mutex{}}
	var output sync.Mutex
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			panic(err)
		}
		answer := func() {
			reply := object{"id": r.ID, "t_inv": 0, "t_ret": 0}
			result, err := p.run(r)
			reply["ok"] = err == nil
			if err == nil {
				reply["result"] = result
			} else {
				reply["error"] = object{"kind": "redsync", "message": err.Error()}
			}
			output.Lock()
			defer output.Unlock()
			_ = json.NewEncoder(os.Stdout).Encode(reply)
		}
		if r.Op == "open" {
			answer()
		} else {
			go answer()
		}
	}
}
