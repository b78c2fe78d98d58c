import assert from 'node:assert/strict';
import {
  EtcdHistory,
  type HistoryComparison,
  type LastChange,
} from '../../../sources/kubernetes/etcd-history.ts';
import { historyCheckRequest } from '../../../sources/kubernetes/lister.ts';

const change = (version: string | undefined): LastChange => ({
  namespace: 'default',
  name: 'a',
  version,
});
const object = (name: string, resourceVersion: string) => ({
  metadata: { namespace: 'default', name, resourceVersion },
});

const GONE = { version: '20', lastChange: undefined, changed: undefined };

describe('etcd-history: the history of the API server', () => {
  // The agent has seen version 100.
  const cases: readonly [
    string,
    LastChange | undefined,
    string,
    string | undefined,
    HistoryComparison,
  ][] = [
    ['nothing has changed', change('90'), '100', '90', 'same'],
    ['the object has changed since then', change('90'), '120', '110', 'same'],
    [
      'the object was deleted before, and does not exist',
      change(undefined),
      '120',
      undefined,
      'same',
    ],
    ['the object was deleted before, and created again', change(undefined), '120', '105', 'same'],
    ['there was no object', undefined, '100', undefined, 'same'],
    ['there was no object, and one exists now', undefined, '120', '110', 'same'],
    ['the server has an older version', change('90'), '99', '90', 'older'],
    [
      'the server has an older version, and there was no object',
      undefined,
      '99',
      undefined,
      'older',
    ],
    ['the server has an older version with fewer digits', undefined, '20', undefined, 'older'],
    ['the object has an earlier version', change('90'), '120', '80', 'other'],
    ['the object has another version older than the position', change('90'), '120', '95', 'other'],
    [
      'the object was deleted before, and exists in an old version',
      change(undefined),
      '120',
      '80',
      'other',
    ],
    ['the object does not exist', change('90'), '120', undefined, 'gone'],
  ];
  for (const [what, lastChange, version, present, verdict] of cases) {
    it(`returns ${verdict} when ${what}`, () => {
      const known = { version: '100', lastChange };
      const state = { version, lastChange: present, changed: undefined };
      assert.equal(new EtcdHistory().compare(known, state), verdict);
    });
  }

  it('a deletion is unconfirmed until a watch delivers the DELETED event', () => {
    const history = new EtcdHistory();
    history.startList('10');
    for (const [name, version] of [
      ['a', '7'],
      ['b', '9'],
      ['c', '8'],
    ] as const) {
      history.recordListItem(object(name, version));
    }
    assert.equal(history.position.lastChange?.name, 'b');
    const check = () => history.compare(history.position, GONE);
    assert.equal(check(), 'gone');
    assert.ok(history.hasUnconfirmedDeletion);
    assert.ok(history.recordEvent('MODIFIED', object('a', '15'), '15'));
    assert.ok(history.hasUnconfirmedDeletion);
    assert.ok(history.recordEvent('DELETED', object('b', '16'), '16'));
    assert.ok(!history.hasUnconfirmedDeletion);

    assert.ok(history.recordEvent('ADDED', object('d', '17'), '17'));
    assert.equal(check(), 'gone');
    assert.ok(history.recordEvent('BOOKMARK', { metadata: {} }, '20'));
    // The watch is past the version at which the object was missing, without a DELETED event.
    assert.ok(!history.recordEvent('ADDED', object('e', '21'), '21'));
  });

  it('a deletion is confirmed when a watch delivered the DELETED event during the check', () => {
    const history = new EtcdHistory();
    history.startList('10');
    history.recordListItem(object('b', '9'));
    const known = history.position;
    assert.ok(history.recordEvent('DELETED', object('b', '16'), '16'));
    assert.equal(history.compare(known, GONE), 'gone');
    assert.ok(!history.hasUnconfirmedDeletion);
    assert.ok(history.recordEvent('ADDED', object('e', '21'), '21'));
  });

  it('reads one object to check the history', () => {
    const path = '/apis/discovery.k8s.io/v1/endpointslices';
    const labels = { labelSelector: '!headless' };
    assert.deepEqual(historyCheckRequest(path, labels, change('9')), {
      path: '/apis/discovery.k8s.io/v1/namespaces/default/endpointslices',
      query: { ...labels, fieldSelector: 'metadata.name=a', limit: '1' },
    });
    assert.deepEqual(historyCheckRequest(path, labels, undefined), {
      path,
      query: { ...labels, limit: '1' },
    });
    const node = { namespace: '', name: 'n', version: '9' };
    const own = { fieldSelector: 'metadata.name=n' };
    assert.deepEqual(historyCheckRequest('/api/v1/nodes', own, node), {
      path: '/api/v1/nodes',
      query: { ...own, limit: '1' },
    });
    const running = { fieldSelector: 'status.phase!=Failed' };
    assert.equal(
      historyCheckRequest('/api/v1/pods', running, change('9')).query.fieldSelector,
      'status.phase!=Failed,metadata.name=a',
    );
  });
});
