import assert from 'node:assert/strict';
import { tellRepeats } from '../../cmd/source-log.ts';
import { policyResources, servingResources } from '../../sources/kubernetes/resources.ts';

describe('what the log says of lists and watches', () => {
  const world = () => {
    const lines: string[] = [];
    const heard: unknown[] = [];
    const say = (level: string) => (details: object, message: string) => {
      lines.push(`${level} ${'kind' in details ? details.kind : ''} ${message}`);
    };
    const { log, observer } = tellRepeats(
      { debug: say('debug'), info: say('info'), warn: say('warn'), error: say('error') },
      {
        request: (request) => heard.push(request),
        watching: (...watch) => heard.push(watch),
        current: (resource) => heard.push(resource),
        absent: (resource) => heard.push(resource),
        deaf: (resource) => heard.push(resource),
      },
      [...servingResources('node'), ...policyResources()],
    );
    const fail = (kind: string) => log.warn({ kind, err: new Error('refused') }, 'list failed');
    return { lines, heard, log, observer, fail };
  };

  it('is one line for each kind until its watch is open', () => {
    const { lines, heard, observer, fail } = world();
    fail('Service');
    fail('Service');
    fail('EndpointSlice');
    observer.watching('services', false);
    observer.watching('services', true);
    observer.watching('services', true);
    assert.deepEqual(lines, [
      'warn Service list failed',
      'debug Service list failed',
      'warn EndpointSlice list failed',
      'info Service list and watch work again',
    ]);
    assert.equal(heard.length, 3, 'metrics hear the same as before');
  });

  it('ends with a CRD that is not installed, too', () => {
    const { lines, observer, fail } = world();
    fail('CIDRGroup');
    observer.absent('cidrgroups');
    assert.deepEqual(lines, [
      'warn CIDRGroup list failed',
      'info CIDRGroup list and watch work again',
    ]);
  });

  it('passes on what is no failed attempt', () => {
    const { lines, log } = world();
    for (let time = 0; time < 2; time++) log.warn({ kind: 'CIDRGroup', objects: 3 }, 'gone');
    log.info({}, 'stopped');
    assert.deepEqual(lines, ['warn CIDRGroup gone', 'warn CIDRGroup gone', 'info  stopped']);
  });
});
