"""First names of the stories' children, and a way to hand them round."""

import re

GIRLS = tuple(["Abby", "Amy", "Anna", "Annie", "Bella", "Beth", "Chloe", "Clara", "Daisy", "Ella", "Ellie", "Emily", "Emma", "Hannah", "Jane", "Jenny", "Jill", "Julie", "Kate", "Katie", "Kim", "Lila", "Lily", "Lisa", "Lola", "Lucy", "Maggie", "Mandy", "Maria", "Mary", "Mia", "Millie", "Molly", "Nina", "Nora", "Olivia", "Polly", "Rachel", "Rosie", "Ruby", "Sally", "Sara", "Sarah", "Sophie", "Sue", "Susan", "Susie", "Zoe"])
BOYS = tuple(["Adam", "Alex", "Andy", "Ben", "Benny", "Bill", "Billy", "Bob", "Bobby", "Charlie", "Dan", "Daniel", "David", "Fred", "George", "Harry", "Henry", "Jack", "Jake", "James", "Jim", "Jimmy", "Joe", "Joey", "John", "Johnny", "Josh", "Leo", "Luke", "Matt", "Max", "Mike", "Nick", "Oliver", "Paul", "Peter", "Pete", "Sam", "Sammy", "Steve", "Ted", "Teddy", "Tim", "Timmy", "Toby", "Tom", "Tommy", "Tony"])
OTHERS = ["Aaron", "Abigail", "Alice", "Amanda", "Amelia", "Andrew", "Anthony", "Ashley", "Barry", "Becky", "Betty", "Brian", "Brandon", "Caleb", "Carl", "Carla", "Carlos", "Charlotte", "Chris", "Christopher", "Cindy", "Claire", "Connie", "Danny", "Dave", "Debbie", "Dennis", "Derek", "Diana", "Doug", "Dylan", "Edward", "Eli", "Elizabeth", "Eric", "Ethan", "Eva", "Evan", "Felix", "Fiona", "Frank", "Freddie", "Freddy", "Gary", "Gina", "Gracie", "Greg", "Harvey", "Heather", "Helen", "Holly", "Ian", "Isabella", "Isla", "Jackie", "Jackson", "Jacob", "Janet", "Jasmine", "Jason", "Jasper", "Jeff", "Jen", "Jenna", "Jennifer", "Jeremy", "Jerry", "Jessica", "Jo", "Jordan", "Joseph", "Joshua", "Joy", "Judy", "Julia", "Karen", "Katherine", "Kathy", "Kelly", "Ken", "Kenny", "Kevin", "Kyle", "Larry", "Laura", "Lauren", "Leon", "Leah", "Liam", "Linda", "Liz", "Louis", "Louise", "Luca", "Lucas", "Lulu", "Lydia", "Maddy", "Marcus", "Margaret", "Marie", "Martha", "Martin", "Mason", "Matthew", "Megan", "Melissa", "Michael", "Michelle", "Mikey", "Milo", "Nancy", "Natalie", "Nate", "Nathan", "Ned", "Nicky", "Nicole", "Noah", "Oscar", "Pam", "Patrick", "Penny", "Percy", "Phil", "Ralph", "Rebecca", "Richard", "Ricky", "Riley", "Rob", "Robbie", "Robert", "Roy", "Ryan", "Samantha", "Samuel", "Sandy", "Scott", "Sean", "Sheila", "Simon", "Sophia", "Stella", "Stephanie", "Stephen", "Steven", "Suzy", "Tara", "Terry", "Theo", "Thomas", "Tina", "Tracy", "Trevor", "Tyler", "Victor", "Victoria", "Violet", "Walter", "Wendy", "Wilbur", "Zach", "Zachary", "Zara"]
NAMES = frozenset(name.lower() for name in (*GIRLS, *BOYS, *OTHERS))
CHILD = re.compile(r"\b(" + "|".join((*GIRLS, *BOYS)) + r")\b")


def renamed(story, rng):
    """The same story about children of other names; girls stay girls, boys boys, and no two merge."""
    here = dict.fromkeys(CHILD.findall(story))
    new = {}
    for group in (GIRLS, BOYS):
        old = [name for name in here if name in group]
        new |= zip(old, rng.sample(group, len(old)))
    return CHILD.sub(lambda m: new[m[1]], story)
