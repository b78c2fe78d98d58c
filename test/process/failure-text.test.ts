import assert from 'node:assert/strict';
import { IptablesError } from '../../iptables/commands.ts';
import { failureText } from '../../process/failure-text.ts';

const WARNING = '# Warning: iptables-legacy tables present, use iptables-legacy to see them\n';

describe('failure text', () => {
  for (const [title, error, expected] of [
    [
      'the first error',
      new IptablesError('iptables-restore', 'line 5 failed\nline 6 failed\n', {}, undefined),
      'iptables-restore failed: line 5 failed',
    ],
    [
      'the error after a warning',
      new IptablesError('iptables-restore', `${WARNING}${WARNING}line 5 failed\n`, {}, undefined),
      'iptables-restore failed: line 5 failed',
    ],
    [
      'a warning if there is nothing else',
      new IptablesError('iptables-restore', WARNING, {}, undefined),
      `iptables-restore failed: ${WARNING.trim()}`,
    ],
    ['a message of one line', new Error('no memory'), 'no memory'],
    ['what is no Error', 'EPERM', 'EPERM'],
    ['at most 300 characters', new Error('x'.repeat(1000)), `${'x'.repeat(300)}...`],
  ] as const) {
    it(`is ${title}`, () => assert.equal(failureText(error), expected));
  }
});
