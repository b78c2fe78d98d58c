import assert from 'node:assert/strict';
import { IptablesError } from '../../iptables/commands.ts';
import { NftError } from '../../nft/command.ts';
import { failureText } from '../../process/failure-text.ts';

const MISSING = `/dev/stdin:1:13-16: Error: Could not process rule: No such file or directory
add rule ip nope y accept
            ^^^^
`;
const OTHER = `/dev/stdin:2:17-19: Error: unknown chain type
 chain a { type foo hook bar priority 0; }
                ^^^
`;
const WARNING = '# Warning: iptables-legacy tables present, use iptables-legacy to see them\n';

describe('failure text', () => {
  for (const [title, error, expected] of [
    [
      'the first error of nft with the line that it is about',
      new NftError(MISSING + OTHER, undefined),
      'nft failed: Error: Could not process rule: No such file or directory: add rule ip nope y accept',
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
