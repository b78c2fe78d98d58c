/** Which of the two kernel interfaces the commands speak to. Settings name them, without loading what runs commands. */
export type Variant = 'nft' | 'legacy';
export const VARIANTS: readonly Variant[] = ['nft', 'legacy'];
