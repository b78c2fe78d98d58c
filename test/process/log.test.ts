import assert from 'node:assert/strict';
import { IptablesError } from '../../iptables/commands.ts';
import { serializeError } from '../../process/log.ts';
import { ConnectionError } from '../../sources/kubernetes/errors.ts';

const hasStack = (error: unknown) =>
  (serializeError(error) as { stack?: string }).stack !== undefined;
const refused = Object.assign(new Error('connect ECONNREFUSED 127.0.0.1:1'), {
  code: 'ECONNREFUSED',
  syscall: 'connect',
});

describe('log: serialized errors', () => {
  it('omits the stack of typed and system errors', () => {
    assert.deepEqual(serializeError(new ConnectionError(refused)), {
      type: 'ConnectionError',
      message: 'API server: connect ECONNREFUSED 127.0.0.1:1',
    });
    assert.deepEqual(serializeError(refused), {
      type: 'Error',
      message: 'connect ECONNREFUSED 127.0.0.1:1',
      code: 'ECONNREFUSED',
    });
    const place = { line: '-A X -j Y', table: 'nat' };
    assert.deepEqual(serializeError(new IptablesError('iptables-restore', 'no', place, refused)), {
      type: 'IptablesError',
      message: 'iptables-restore failed at "-A X -j Y": no',
    });
  });

  it('keeps the stack of bugs, also as the cause of another error', () => {
    assert.ok(hasStack(new TypeError('x is undefined')));
    assert.ok(hasStack(new Error('what')));
    assert.ok(hasStack(new ConnectionError(new TypeError('x is undefined'))));
  });
});
